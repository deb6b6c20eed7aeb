//! The socket pair between keeper and service: one small JSON message per packet, descriptors beside it.
//!
//! `SOCK_SEQPACKET` keeps message borders, so a message is whole or refused. A peer that ends is seen as the
//! end of the stream. Bounds: `MESSAGE_LIMIT` bytes and `DESCRIPTORS_PER_MESSAGE` descriptors a message (the
//! kernel's own limit is `SCM_MAX_FD`, 253).

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// A message of the service to the keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromService {
    /// Keep the one descriptor beside this message under this name; an older one of that name is closed.
    Deposit(String),
    /// Close the keeper's copy of this name.
    Withdraw(String),
    /// It goes on waiting for what it starts from: the registry's answer.
    Waiting,
    /// Everything is set up; nothing has been read yet.
    Ready,
    /// Packets are being read.
    Forwarding,
    /// The files were read again, as was asked, and this service goes on. From version 2 on.
    Reloaded,
    /// Have another program's service take the place of this one. The connection beside it gets word of what becomes of
    /// that ([`Step`](super::progress::Step)). From version 3 on, as all that follows.
    Upgrade(UpgradeRequest),
    /// It has been told to pause: it reads nothing, holds nothing, and changes nothing.
    Paused,
    /// It has been told to resume, and reads again.
    Resumed,
    /// Hand everything over to the agent at the other end of the connection beside it. From version 4 on.
    HandOver(HandOverRequest),
    /// Of an agent that takes over: its service has ended, for this reason. It is the last message.
    Failed(String),
    /// Of an agent that takes over: it has what came beside [`FromKeeper::Given`], and goes on alone.
    Taken,
}

/// An agent that asks to take over (`tartan run --take-over`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HandOverRequest {
    /// Its instance.
    pub instance: String,
    /// Its version.
    pub version: String,
    /// Which messages it understands ([`HAND_OVER_FORMAT`]).
    pub format: u32,
    /// Its service cannot start beside the one that runs, which is to end before.
    pub ends_first: bool,
    /// The version of the service that runs.
    pub from: String,
}

/// What is to take the place of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UpgradeRequest {
    /// The program; none: the file by which the agent was started.
    pub program: Option<OsString>,
    /// The version of the service that runs.
    pub version: String,
}

/// A message of the keeper to the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromKeeper {
    /// The descriptors kept, in the order of the names; the first message to a service.
    Table(TablePart),
    /// Read the first packet.
    Go,
    /// Read no more, finish what was read, change nothing, and say *paused*. To a service that has asked for an upgrade, as
    /// all that follows.
    Pause,
    /// Go on: the other service has not come to it, and is gone.
    Resume,
    /// End, and leave everything as it is: the other service forwards.
    End,
    /// To an agent that takes over: it does not, for this reason. It is the last message.
    Refused(String),
    /// To an agent that takes over: the descriptor of the lock is beside it, and all is its own once it says
    /// [`FromService::Taken`]. It is the last message.
    Given {
        /// The instance that hands over.
        from: String,
    },
}

/// That another program's service has taken the place of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Upgraded {
    /// The version before.
    pub from: String,
    /// When, in Unix seconds.
    pub at: u64,
}

/// A part of the table, with the descriptors of its names beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TablePart {
    /// Names, in the order of the descriptors.
    pub names: Vec<String>,
    /// No further part follows.
    pub last: bool,
    /// How often the keeper has started a service anew, for `tartan status`.
    pub restarts: u64,
    /// How the service before this one ended, in words.
    pub last_end: Option<String>,
    /// Which messages the keeper understands: the file of the program may have been replaced since it was started.
    #[serde(default = "first_protocol")]
    pub protocol: u32,
    /// Another service reads these descriptors: nothing is to be changed before *go*, here or on the host.
    #[serde(default)]
    pub beside: bool,
    /// The latest upgrade since the agent was started; to a service beside another, the one that it is to be.
    #[serde(default)]
    pub upgraded: Option<Upgraded>,
}

/// The first version, of keepers that name none.
fn first_protocol() -> u32 {
    1
}

/// The present version: 2 has [`FromService::Reloaded`], 3 has upgrades, 4 hands over to another agent.
pub const PROTOCOL: u32 = 4;

/// The first version whose services start beside another.
pub const UPGRADE_SINCE: u32 = 3;

/// The first version whose keepers hand over to another agent.
pub const HAND_OVER_SINCE: u32 = 4;

/// The version of what two keepers say to each other while one takes over: another number where an older one would not
/// understand it.
pub const HAND_OVER_FORMAT: u32 = 1;

/// Why a message could not be sent or read.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// The kernel refused the socket.
    #[error("the socket between keeper and service failed; both restart from the descriptors kept")]
    Socket(#[source] io::Error),
    /// The bytes are no message.
    #[error("a message between keeper and service is not understood; install both from one build")]
    Message(#[source] serde_json::Error),
    /// More bytes or descriptors than a message may hold.
    #[error("a message between keeper and service was cut short; install both from one build")]
    Truncated,
}

/// One end of the pair. Lives in a tokio runtime.
#[derive(Debug)]
pub struct Channel {
    // tokio has no type for SOCK_SEQPACKET. Its datagram type serves: it only registers the descriptor, and
    // the reads and writes are ours.
    socket: UnixDatagram,
}

impl Channel {
    /// A new pair: our end, and the end that the child inherits.
    ///
    /// # Errors
    /// `Socket` when the kernel has no descriptor left.
    pub fn pair() -> Result<(Channel, OwnedFd), ChannelError> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|error| ChannelError::Socket(error.into()))?;
        Ok((Channel::adopt(ours)?, theirs))
    }

    /// Takes an end that was inherited.
    ///
    /// # Errors
    /// `Socket` when the descriptor is no socket of this kind, or outside a tokio runtime.
    pub fn adopt(socket: OwnedFd) -> Result<Channel, ChannelError> {
        let kind = rustix::net::sockopt::socket_type(&socket)
            .map_err(|error| ChannelError::Socket(error.into()))?;
        if kind != SocketType::SEQPACKET {
            return Err(ChannelError::Socket(io::ErrorKind::InvalidInput.into()));
        }
        rustix::io::ioctl_fionbio(&socket, true)
            .map_err(|error| ChannelError::Socket(error.into()))?;
        let socket = UnixDatagram::from_std(socket.into()).map_err(ChannelError::Socket)?;
        Ok(Channel { socket })
    }

    /// The socket, for the program that is executed in this one's place.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends one message and duplicates of the descriptors.
    ///
    /// # Errors
    /// `Truncated` when it holds too much, `Socket` when the other side is gone.
    pub async fn send<M: Serialize>(
        &self,
        message: &M,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let text = serde_json::to_vec(message).map_err(ChannelError::Message)?;
        if text.len() > MESSAGE_LIMIT || descriptors.len() > DESCRIPTORS_PER_MESSAGE {
            return Err(ChannelError::Truncated);
        }
        let send = || write_packet(self.socket.as_fd(), &text, descriptors);
        self.socket
            .async_io(Interest::WRITABLE, send)
            .await
            .map_err(ChannelError::Socket)
    }

    /// Waits for the next message; `None` when the other side has ended. Dropping the future loses nothing.
    ///
    /// # Errors
    /// `Message` or `Truncated` for what is no message, `Socket` when the kernel says so.
    pub async fn receive<M: DeserializeOwned>(
        &self,
    ) -> Result<Option<(M, Vec<OwnedFd>)>, ChannelError> {
        let read = || read_packet(self.socket.as_fd());
        let packet = self.socket.async_io(Interest::READABLE, read).await;
        understand(packet.map_err(ChannelError::Socket)?)
    }

    /// The next message if one is waiting: what a child wrote before it died.
    ///
    /// # Errors
    /// As [`receive`](Channel::receive).
    pub fn receive_waiting<M: DeserializeOwned>(
        &self,
    ) -> Result<Option<(M, Vec<OwnedFd>)>, ChannelError> {
        match read_packet(self.socket.as_fd()) {
            Ok(packet) => understand(packet),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(ChannelError::Socket(error)),
        }
    }
}

/// What one call of recvmsg(2) gives.
pub(super) struct Packet {
    pub(super) text: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
    truncated: bool,
}

pub(super) fn write_packet(
    socket: BorrowedFd<'_>,
    text: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(
        socket,
        &[IoSlice::new(text)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

pub(super) fn read_packet(socket: BorrowedFd<'_>) -> io::Result<Packet> {
    let mut text = vec![0; MESSAGE_LIMIT];
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_MESSAGE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut read = || {
        let text = &mut [IoSliceMut::new(&mut text)];
        recvmsg(socket, text, &mut control, RecvFlags::CMSG_CLOEXEC)
    };
    let received = match read() {
        // The other side died with messages of ours unread. The kernel says so once, before it hands over
        // what that side had written.
        Err(Errno::CONNRESET) => read()?,
        other => other?,
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    text.truncate(received.bytes);
    let truncated = received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Packet {
        text,
        descriptors,
        truncated,
    })
}

fn understand<M: DeserializeOwned>(
    packet: Packet,
) -> Result<Option<(M, Vec<OwnedFd>)>, ChannelError> {
    if packet.truncated {
        return Err(ChannelError::Truncated);
    }
    // No side sends an empty message: this is the end.
    if packet.text.is_empty() {
        return Ok(None);
    }
    let message = serde_json::from_slice(&packet.text).map_err(ChannelError::Message)?;
    Ok(Some((message, packet.descriptors)))
}

/// Bytes of JSON in one message: 200 names of 64 bytes fit several times.
const MESSAGE_LIMIT: usize = 64 * 1024;

/// Descriptors beside one message.
pub const DESCRIPTORS_PER_MESSAGE: usize = 200;

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::test_run::run;

    #[test]
    fn a_message_arrives_with_its_descriptors_in_order() {
        run(async {
            let (ours, theirs) = Channel::pair().unwrap();
            let theirs = Channel::adopt(theirs).unwrap();
            let files: Vec<File> = (0..3).map(|_| tempfile::tempfile().unwrap()).collect();
            let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            let part = TablePart {
                names: vec!["a".into(), "b".into(), "c".into()],
                last: true,
                restarts: 7,
                last_end: Some("killed".into()),
                protocol: PROTOCOL,
                beside: true,
                upgraded: Some(Upgraded {
                    from: "0.1.0".into(),
                    at: 7,
                }),
            };
            ours.send(&FromKeeper::Table(part.clone()), &borrowed)
                .await
                .unwrap();
            let (message, descriptors) = theirs.receive::<FromKeeper>().await.unwrap().unwrap();
            assert_eq!(message, FromKeeper::Table(part));
            let inodes: Vec<u64> = descriptors
                .into_iter()
                .map(|fd| File::from(fd).metadata().unwrap().ino())
                .collect();
            let expected: Vec<u64> = files.iter().map(|f| f.metadata().unwrap().ino()).collect();
            assert_eq!(inodes, expected);
        });
    }

    #[test]
    fn the_end_of_the_other_side_is_none_after_what_it_wrote() {
        run(async {
            let (ours, theirs) = Channel::pair().unwrap();
            let theirs = Channel::adopt(theirs).unwrap();
            ours.send(&FromKeeper::Go, &[]).await.unwrap();
            theirs.send(&FromService::Ready, &[]).await.unwrap();
            drop(theirs);
            let first = ours
                .receive::<FromService>()
                .await
                .unwrap()
                .map(|(message, _)| message);
            assert_eq!(first, Some(FromService::Ready));
            assert!(ours.receive::<FromService>().await.unwrap().is_none());
            assert!(matches!(
                ours.send(&FromKeeper::Go, &[]).await,
                Err(ChannelError::Socket(error)) if error.kind() == io::ErrorKind::BrokenPipe
            ));
        });
    }

    #[test]
    fn garbage_and_oversize_are_refused_not_misread() {
        run(async {
            let (ours, theirs) = Channel::pair().unwrap();
            rustix::net::send(&theirs, b"{\"nonsense\":1}", SendFlags::empty()).unwrap();
            let refused = ours.receive::<FromService>().await;
            assert!(matches!(refused, Err(ChannelError::Message(_))));
            rustix::net::send(&theirs, &vec![b'x'; MESSAGE_LIMIT + 1], SendFlags::empty()).unwrap();
            let refused = ours.receive::<FromService>().await;
            assert!(matches!(refused, Err(ChannelError::Truncated)));
            let long = FromService::Deposit("n".repeat(MESSAGE_LIMIT));
            assert!(matches!(
                ours.send(&long, &[]).await,
                Err(ChannelError::Truncated)
            ));
        });
    }

    /// As keepers wrote it before there were versions.
    #[test]
    fn a_table_without_a_version_is_of_the_first() {
        let text = r#"{"table":{"names":[],"last":true,"restarts":0,"last_end":null}}"#;
        let FromKeeper::Table(part) = serde_json::from_str(text).unwrap() else {
            panic!("no table");
        };
        assert_eq!((part.protocol, part.beside), (1, false));
    }

    #[test]
    fn a_stream_is_no_channel() {
        run(async {
            let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
            assert!(matches!(
                Channel::adopt(stream.into()),
                Err(ChannelError::Socket(_))
            ));
        });
    }
}
