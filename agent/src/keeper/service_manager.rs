//! What the keeper tells the service manager (sd_notify(3)), and the descriptors that this keeps for it.
//!
//! Theory of operation. systemd gives a unit a datagram socket by name, `NOTIFY_SOCKET`, and takes from the unit's main
//! process, which the keeper is, lines like `READY=1`. A descriptor beside `FDSTORE=1` and a name is kept by it: when the
//! unit is started again, also after SIGKILL of the keeper, the new keeper finds it open from number 3 on, named in
//! `LISTEN_FDNAMES` (sd_listen_fds(3)). So the keeper's whole table outlives it: packets wait, and no peer is told that a
//! port is closed. Without a service manager, or with one that keeps nothing, all of this does nothing.
//!
//! Order matters, and the socket may be full: what cannot be sent at once waits, and is tried again with each message and
//! each second. The store knows no replacing, so a name that is stored again is removed first.
//!
//! systemd would watch the descriptors and forget those that report an error, as a socket does at each ICMP error:
//! `FDPOLL=0` keeps it from that.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::time::{ClockId, clock_gettime};
use tokio::net::unix::pipe;
use tokio::time::timeout;
use tracing::warn;

/// A descriptor that the service manager has kept, or why it cannot be had.
pub(super) struct Kept {
    pub(super) name: String,
    pub(super) descriptor: io::Result<OwnedFd>,
}

/// The way to the service manager.
#[derive(Default)]
pub(super) struct ServiceManager {
    address: Option<SocketAddr>,
    is_watchdog_on: bool,
    waiting: VecDeque<Message>,
    /// Names in the store, as far as was said.
    stored: BTreeSet<String>,
    status: String,
    has_complained: bool,
    /// It was told to forget something, and has not said that it has.
    is_forgetting: bool,
    is_stopping: bool,
}

struct Message {
    text: String,
    descriptor: Option<OwnedFd>,
}

impl ServiceManager {
    /// The one that the environment names.
    pub(super) fn from_environment() -> ServiceManager {
        let mut manager = ServiceManager::default();
        let Some(socket) = std::env::var_os(SOCKET) else {
            return manager;
        };
        match address(&socket) {
            Ok(address) => manager.address = Some(address),
            Err(error) => manager.complain(&error),
        }
        let period = std::env::var(WATCHDOG)
            .ok()
            .and_then(|text| text.parse().ok());
        let is_ours = std::env::var(WATCHDOG_PROCESS).map_or(true, |pid| is_own(&pid));
        if let Some(period) = period.filter(|_| is_ours).map(Duration::from_micros) {
            manager.is_watchdog_on = true;
            if period < LEAST_WATCHDOG {
                warn!(
                    "WatchdogSec is {} ms: the keeper speaks once a second, and waits up to 5 s between services; set it to 20s",
                    period.as_millis()
                );
            }
        }
        manager
    }

    /// The unit is up, or up again after [`reloading`](ServiceManager::reloading).
    pub(super) fn ready(&mut self) {
        self.say("READY=1");
    }

    /// Its files are being read again.
    pub(super) fn reloading(&mut self) {
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
    }

    /// The unit stops, whatever the reason; said once.
    pub(super) fn stopping(&mut self) {
        if !std::mem::replace(&mut self.is_stopping, true) {
            self.say("STOPPING=1");
        }
    }

    /// What the unit does, in a sentence of one line, for `systemctl status`.
    pub(super) fn status(&mut self, sentence: &str) {
        let line: String = sentence.chars().filter(|c| !c.is_control()).collect();
        if line != self.status {
            self.say(&format!("STATUS={line}"));
            self.status = line;
        }
    }

    /// The keeper works, and so does the service as far as it has one. To be said once a second.
    pub(super) fn alive(&mut self) {
        self.flush();
        // It is said again in a second: one that waits would say it of a moment that is past.
        if self.is_watchdog_on && self.waiting.is_empty() {
            self.say("WATCHDOG=1");
        }
    }

    /// Keep this descriptor under this name, in the place of an earlier one.
    pub(super) fn store(&mut self, name: &str, descriptor: BorrowedFd<'_>) {
        if self.address.is_none() {
            return;
        }
        self.forget(name);
        if name.contains(':') {
            warn!(
                name,
                "not given to the service manager, whose names have no colon"
            );
            return;
        }
        let text = format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0");
        match descriptor.try_clone_to_owned() {
            Ok(duplicate) => {
                self.stored.insert(name.to_owned());
                self.push(Message {
                    text,
                    descriptor: Some(duplicate),
                });
            }
            Err(error) => warn!(name, %error, "not given to the service manager"),
        }
    }

    /// Close what is kept under this name.
    pub(super) fn forget(&mut self, name: &str) {
        if self.stored.remove(name) {
            self.is_forgetting = true;
            self.say(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
        }
    }

    /// Waits until what it was told to forget is closed there: a duplicate that it kept of a queue or a socket that no worker
    /// reads would take its share of what arrives.
    pub(super) async fn has_forgotten(&mut self) {
        if self.is_forgetting && self.settled(FORGETTING).await {
            self.is_forgetting = false;
        }
    }

    /// Waits until it has taken all that it was told (`BARRIER=1`, sd_notify_barrier(3)). False where that lasts longer.
    pub(super) async fn settled(&mut self, patience: Duration) -> bool {
        if self.address.is_none() {
            return true;
        }
        let barrier = std::io::pipe().and_then(|(end, barrier)| {
            let end = pipe::Receiver::from_owned_fd(end.into())?;
            Ok((end, OwnedFd::from(barrier)))
        });
        let (end, barrier) = match barrier {
            Ok(pair) => pair,
            Err(error) => {
                self.complain(&error);
                return false;
            }
        };
        self.push(Message {
            text: "BARRIER=1".to_owned(),
            descriptor: Some(barrier),
        });
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            // It closes its end of the pipe, or the message was refused: then nothing waits either.
            if timeout(STEP, end.readable()).await.is_ok() {
                return self.waiting.is_empty();
            }
            self.flush();
        }
        false
    }

    /// Names in the store, as far as was said.
    pub(super) fn stored(&self) -> impl Iterator<Item = &str> {
        self.stored.iter().map(String::as_str)
    }

    /// Notes that it keeps something under this name, of a keeper before.
    pub(super) fn note_stored(&mut self, name: &str) {
        self.stored.insert(name.to_owned());
    }

    fn say(&mut self, text: &str) {
        self.push(Message {
            text: text.to_owned(),
            descriptor: None,
        });
    }

    fn push(&mut self, message: Message) {
        if self.address.is_none() {
            return;
        }
        if self.waiting.len() >= WAITING_LIMIT {
            self.complain(&io::ErrorKind::WouldBlock.into());
            return;
        }
        self.waiting.push_back(message);
        self.flush();
    }

    /// Sends what waits, in order, until the socket takes no more.
    fn flush(&mut self) {
        let Some(address) = &self.address else {
            return;
        };
        while let Some(message) = self.waiting.front() {
            match send(address, message) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                sent => {
                    self.waiting.pop_front();
                    if let Err(error) = sent {
                        return self.complain(&error);
                    }
                }
            }
        }
    }

    fn complain(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.has_complained, true) {
            warn!(%error, "the service manager cannot be told how the unit is: check {SOCKET}, or use Type=exec");
        }
    }
}

/// The descriptors that a service manager has kept or opened for this process, each once: they are taken by this call.
pub(super) fn take_kept() -> Vec<Kept> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    // The variables may be meant for another process, which has handed its environment on.
    if !is_own(&variable(LISTEN_PROCESS)) {
        return Vec::new();
    }
    let count = variable(LISTEN_COUNT)
        .parse()
        .unwrap_or(0)
        .min(LISTEN_LIMIT);
    let names = variable(LISTEN_NAMES);
    let mut names = names.split(':');
    let kept = (FIRST..FIRST.saturating_add(count)).map(|number| Kept {
        name: names.next().unwrap_or_default().to_owned(),
        descriptor: dataplane::inherited::take(number),
    });
    kept.collect()
}

/// Those of them that are used up once their descriptors are taken.
pub(super) const LISTEN_VARIABLES: [&str; 3] = [LISTEN_PROCESS, LISTEN_COUNT, LISTEN_NAMES];

/// Variables that are meant for the keeper, and not for its child.
pub(super) const VARIABLES: [&str; 7] = [
    SOCKET,
    WATCHDOG,
    WATCHDOG_PROCESS,
    LISTEN_PROCESS,
    LISTEN_COUNT,
    LISTEN_NAMES,
    "FDSTORE",
];

fn is_own(pid: &str) -> bool {
    pid.parse() == Ok(std::process::id())
}

/// A name that begins with `@` is one of Linux's abstract namespace.
fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(socket),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn send(address: &SocketAddr, message: &Message) -> io::Result<()> {
    let datagrams = UnixDatagram::unbound()?;
    // A service manager that hangs must not keep the keeper waiting.
    datagrams.set_nonblocking(true)?;
    datagrams.connect_addr(address)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = message.descriptor.iter().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let text = [IoSlice::new(message.text.as_bytes())];
    sendmsg(&datagrams, &text, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

const SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG: &str = "WATCHDOG_USEC";
const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";
const LISTEN_PROCESS: &str = "LISTEN_PID";
const LISTEN_COUNT: &str = "LISTEN_FDS";
const LISTEN_NAMES: &str = "LISTEN_FDNAMES";
/// SD_LISTEN_FDS_START
const FIRST: i32 = 3;
/// Above the number of descriptors that the keeper holds at most, with what sockets of the unit may come beside.
const LISTEN_LIMIT: i32 = 1024;
/// Of messages that wait: each descriptor of a full table removed and stored once.
const WAITING_LIMIT: usize = 1100;
/// A service manager that is busy is not waited for longer, while packets wait.
const FORGETTING: Duration = Duration::from_millis(200);
/// Between two tries to send what waits.
const STEP: Duration = Duration::from_millis(2);
/// The keeper waits up to 5 s between two services, and says nothing meanwhile.
const LEAST_WATCHDOG: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str) -> (UnixDatagram, ServiceManager) {
        let name = format!("tartan-{name}-{}", std::process::id());
        let listener =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        listener.set_nonblocking(true).unwrap();
        let manager = ServiceManager {
            address: Some(address(OsStr::new(&format!("@{name}"))).unwrap()),
            ..ServiceManager::default()
        };
        (listener, manager)
    }

    fn received(listener: &UnixDatagram) -> Vec<String> {
        let mut buffer = [0; 256];
        let mut texts = Vec::new();
        while let Ok(length) = listener.recv(&mut buffer) {
            texts.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
        texts
    }

    #[test]
    fn a_path_and_an_abstract_name_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut manager = ServiceManager {
            address: Some(address(path.as_os_str()).unwrap()),
            ..ServiceManager::default()
        };
        manager.ready();
        assert_eq!(received(&listener), ["READY=1"]);
        let (listener, mut manager) = told("abstract");
        manager.status("two\nlines");
        manager.status("twolines");
        manager.stopping();
        assert_eq!(received(&listener), ["STATUS=twolines", "STOPPING=1"]);
        manager.alive();
        assert!(received(&listener).is_empty(), "no watchdog was asked for");
        manager.is_watchdog_on = true;
        manager.alive();
        assert_eq!(received(&listener), ["WATCHDOG=1"]);
        manager.reloading();
        let said = received(&listener);
        assert!(
            said[0].starts_with("RELOADING=1\nMONOTONIC_USEC="),
            "{said:?}"
        );
    }

    #[test]
    fn what_cannot_be_told_is_an_error_and_no_wait() {
        for socket in ["vsock:2:7", ""] {
            assert!(address(OsStr::new(socket)).is_err(), "{socket:?}");
        }
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("none");
        let mut manager = ServiceManager {
            address: Some(address(missing.as_os_str()).unwrap()),
            ..ServiceManager::default()
        };
        manager.ready();
        assert!(manager.has_complained && manager.waiting.is_empty());
    }

    /// A socket takes a few datagrams only (net.unix.max_dgram_qlen): the rest waits, and the order stays.
    #[test]
    fn what_the_manager_does_not_take_waits_in_order() {
        let (listener, mut manager) = told("slow");
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        let names: Vec<String> = (0..1000).map(|index| format!("d{index}")).collect();
        // A few with descriptors, of which each that waits is one of the process.
        let (stored, said) = names.split_at(10);
        for name in stored {
            manager.store(name, file.as_fd());
        }
        for name in said {
            manager.say(name);
        }
        assert!(
            !manager.waiting.is_empty(),
            "the kernel took all of them at once"
        );
        manager.is_watchdog_on = true;
        let mut texts = Vec::new();
        for _ in 0..1000 {
            texts.extend(received(&listener));
            manager.alive();
        }
        texts.extend(received(&listener));
        texts.retain(|text| text != "WATCHDOG=1");
        let stored = stored
            .iter()
            .map(|name| format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"));
        let expected = stored.chain(said.iter().cloned());
        assert!(
            texts.iter().cloned().eq(expected),
            "{} of them",
            texts.len()
        );
        assert!(!manager.has_complained);
    }

    #[test]
    fn what_is_forgotten_is_waited_for() {
        crate::test_run::run(async {
            let (listener, mut manager) = told("forget");
            manager.has_forgotten().await;
            assert!(received(&listener).is_empty(), "nothing was forgotten");
            manager.note_stored("old");
            manager.forget("old");
            let taker = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                // Read without room for descriptors, they are closed.
                received(&listener)
            });
            let asked = Instant::now();
            manager.has_forgotten().await;
            assert!(asked.elapsed() >= Duration::from_millis(25));
            assert!(!manager.is_forgetting);
            let texts = taker.join().unwrap();
            assert_eq!(texts, ["FDSTOREREMOVE=1\nFDNAME=old", "BARRIER=1"]);
        });
    }

    #[test]
    fn a_manager_that_does_not_answer_is_not_waited_for_without_end() {
        crate::test_run::run(async {
            let (_listener, mut manager) = told("mute");
            manager.note_stored("old");
            manager.forget("old");
            manager.has_forgotten().await;
            assert!(manager.is_forgetting);
        });
    }

    #[test]
    fn a_name_that_is_stored_again_is_removed_first() {
        let (listener, mut manager) = told("again");
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        manager.note_stored("old");
        manager.store("old", file.as_fd());
        manager.store("a:b", file.as_fd());
        manager.forget("old");
        manager.forget("old");
        let expected = [
            "FDSTOREREMOVE=1\nFDNAME=old",
            "FDSTORE=1\nFDNAME=old\nFDPOLL=0",
            "FDSTOREREMOVE=1\nFDNAME=old",
        ];
        assert_eq!(received(&listener), expected);
    }
}
