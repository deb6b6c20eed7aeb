//! What the keeper held for us: checked, taken over one by one, and the rest closed on both sides.
//!
//! A queue or socket that no worker reads swallows its share of the flows, so nothing inherited is kept without
//! a use: whatever was not taken is withdrawn from the keeper too.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use thiserror::Error;
use tracing::{info, warn};

use crate::keeper::channel::{
    Channel, ChannelError, FromKeeper, FromService, HAND_OVER_SINCE, HandOverRequest,
    UPGRADE_SINCE, UpgradeRequest, Upgraded,
};

/// Why the table could not be had or changed.
#[derive(Debug, Error)]
pub enum DescriptorsError {
    /// Standard input is no channel of a keeper.
    #[error("this process is not the child of a keeper; start `tartan run` instead")]
    NoKeeper(#[source] ChannelError),
    /// The keeper sent something else, or nothing.
    #[error("the keeper did not hand over its table; install keeper and service from one build")]
    Protocol,
    /// The keeper is gone.
    #[error("cannot report a descriptor to the keeper; restart tartan")]
    Channel(#[source] ChannelError),
}

/// The keeper's table, and the way back to it.
#[derive(Debug)]
pub struct Descriptors {
    channel: Channel,
    inherited: BTreeMap<String, OwnedFd>,
    /// How often the keeper has started a service anew.
    pub restarts: u64,
    /// How the service before this one ended.
    pub last_end: Option<String>,
    /// Which messages the keeper understands.
    protocol: u32,
    /// Another service reads what is in the table, until *go*.
    pub is_beside: bool,
    /// The latest upgrade since the agent was started.
    pub upgraded: Option<Upgraded>,
}

/// What the keeper wants of a service that forwards, or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Read no more, and change nothing.
    Pause,
    /// Go on.
    Resume,
    /// End, and leave everything as it is.
    End,
    /// Nothing: it is gone.
    KeeperEnded,
}

impl Descriptors {
    /// Takes the channel and waits for the whole table.
    ///
    /// # Errors
    /// `NoKeeper` when the descriptor is no channel, `Protocol` when something else than a table comes.
    pub async fn receive(channel: OwnedFd) -> Result<Descriptors, DescriptorsError> {
        let channel = Channel::adopt(channel).map_err(DescriptorsError::NoKeeper)?;
        let mut inherited = BTreeMap::new();
        // The keeper holds a bounded number of descriptors, so the parts are few; a bound all the same.
        for _ in 0..PARTS {
            let received = channel
                .receive()
                .await
                .map_err(DescriptorsError::NoKeeper)?;
            let Some((FromKeeper::Table(part), descriptors)) = received else {
                break;
            };
            if part.names.len() != descriptors.len() {
                break;
            }
            inherited.extend(part.names.into_iter().zip(descriptors));
            if part.last {
                return Ok(Descriptors {
                    channel,
                    inherited,
                    restarts: part.restarts,
                    last_end: part.last_end,
                    protocol: part.protocol,
                    is_beside: part.beside,
                    upgraded: part.upgraded,
                });
            }
        }
        Err(DescriptorsError::Protocol)
    }

    /// Whether this is a take-over rather than a first start.
    pub fn is_take_over(&self) -> bool {
        !self.inherited.is_empty()
    }

    /// The descriptor of that name as `adopt` makes it, or else what `open` gives, deposited with the keeper.
    /// An inherited one that `adopt` refuses is withdrawn first.
    ///
    /// # Errors
    /// What `open` says, or `Channel` as a sentence when the keeper is gone.
    pub async fn adopt_or_open<T, A, O>(
        &mut self,
        name: &str,
        adopt: impl Fn(OwnedFd) -> Result<T, A>,
        open: impl FnOnce() -> Result<OwnedFd, O>,
    ) -> Result<T, Obtain<A, O>>
    where
        A: Display,
    {
        if let Some(descriptor) = self.inherited.remove(name) {
            match adopt(descriptor) {
                Ok(adopted) => return Ok(adopted),
                Err(reason) => {
                    warn!(name, "not taken over: {reason}");
                    self.withdraw(name).await.map_err(Obtain::Keeper)?;
                }
            }
        }
        let descriptor = open().map_err(Obtain::Open)?;
        self.deposit(name, descriptor.as_fd())
            .await
            .map_err(Obtain::Keeper)?;
        info!(name, "opened");
        adopt(descriptor).map_err(Obtain::Adopt)
    }

    /// The inherited descriptor of that name. A caller that does not use it withdraws it or deposits another.
    pub fn take(&mut self, name: &str) -> Option<OwnedFd> {
        self.inherited.remove(name)
    }

    /// Takes the inherited descriptors whose names `wanted` picks. The keeper keeps its duplicates.
    pub fn take_all(&mut self, wanted: impl Fn(&str) -> bool) -> Vec<(String, OwnedFd)> {
        let taken = self.inherited.extract_if(.., |name, _| wanted(name));
        taken.collect()
    }

    /// Closes what was not taken, here and in the keeper.
    ///
    /// # Errors
    /// `Channel` when the keeper is gone.
    pub async fn discard_rest(&mut self) -> Result<(), DescriptorsError> {
        while let Some((name, descriptor)) = self.inherited.pop_first() {
            drop(descriptor);
            info!(name, "has no reader and is closed");
            self.withdraw(&name).await?;
        }
        Ok(())
    }

    /// Says that the service goes on waiting for what it starts from.
    ///
    /// # Errors
    /// `Channel` when the keeper is gone.
    pub async fn waiting(&self) -> Result<(), DescriptorsError> {
        self.say(&FromService::Waiting, &[]).await
    }

    /// Names of the table that are neither taken nor closed yet.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.inherited.keys().map(String::as_str)
    }

    /// A descriptor of the table, which stays there.
    pub fn peek(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.inherited.get(name).map(AsFd::as_fd)
    }

    /// Says *ready* and waits for *go*; `false` when the keeper ended instead.
    ///
    /// # Errors
    /// `Channel` or `Protocol`.
    pub async fn ready(&self) -> Result<bool, DescriptorsError> {
        self.say(&FromService::Ready, &[]).await?;
        match self
            .channel
            .receive()
            .await
            .map_err(DescriptorsError::Channel)?
        {
            Some((FromKeeper::Go, _)) => Ok(true),
            Some(_) => Err(DescriptorsError::Protocol),
            None => Ok(false),
        }
    }

    /// Says *forwarding*.
    ///
    /// # Errors
    /// `Channel` when the keeper is gone.
    pub async fn forwarding(&self) -> Result<(), DescriptorsError> {
        self.say(&FromService::Forwarding, &[]).await
    }

    /// Says that the files were read again, if the keeper understands that.
    ///
    /// # Errors
    /// `Channel` when the keeper is gone.
    pub async fn reloaded(&self) -> Result<(), DescriptorsError> {
        if self.protocol < RELOADED_SINCE {
            return Ok(());
        }
        self.say(&FromService::Reloaded, &[]).await
    }

    /// Whether the keeper can have another program's service take the place of this one.
    pub fn can_upgrade(&self) -> bool {
        self.protocol >= UPGRADE_SINCE
    }

    /// Asks for that. `connection` gets word of what becomes of it.
    ///
    /// # Errors
    /// `Channel` when the keeper is gone.
    pub async fn upgrade(
        &self,
        request: UpgradeRequest,
        connection: BorrowedFd<'_>,
    ) -> Result<(), DescriptorsError> {
        self.say(&FromService::Upgrade(request), &[connection])
            .await
    }

    /// Whether the keeper can hand over to another agent.
    pub fn can_hand_over(&self) -> bool {
        self.protocol >= HAND_OVER_SINCE
    }

    /// Asks for that. The other agent is at the other end of `connection`.
    ///
    /// # Errors
    /// `Channel` when the keeper is gone.
    pub async fn hand_over(
        &self,
        request: HandOverRequest,
        connection: BorrowedFd<'_>,
    ) -> Result<(), DescriptorsError> {
        self.say(&FromService::HandOver(request), &[connection])
            .await
    }

    /// Says *paused*.
    ///
    /// # Errors
    /// `Channel` when the keeper is gone.
    pub async fn paused(&self) -> Result<(), DescriptorsError> {
        self.say(&FromService::Paused, &[]).await
    }

    /// Says *resumed*.
    ///
    /// # Errors
    /// `Channel` when the keeper is gone.
    pub async fn resumed(&self) -> Result<(), DescriptorsError> {
        self.say(&FromService::Resumed, &[]).await
    }

    /// Waits for what the keeper wants. Dropping the future loses nothing.
    pub async fn order(&self) -> Order {
        loop {
            match self.channel.receive::<FromKeeper>().await {
                Ok(Some((FromKeeper::Pause, _))) => return Order::Pause,
                Ok(Some((FromKeeper::Resume, _))) => return Order::Resume,
                Ok(Some((FromKeeper::End, _))) => return Order::End,
                Ok(Some((message, _))) => warn!(?message, "the keeper said something unexpected"),
                Ok(None) => return Order::KeeperEnded,
                Err(error) => {
                    warn!(%error, "the keeper is not understood");
                    return Order::KeeperEnded;
                }
            }
        }
    }

    /// Gives the keeper a duplicate of a descriptor.
    ///
    /// # Errors
    /// `Channel` when the keeper is gone.
    pub async fn deposit(
        &self,
        name: &str,
        descriptor: BorrowedFd<'_>,
    ) -> Result<(), DescriptorsError> {
        self.say(&FromService::Deposit(name.to_owned()), &[descriptor])
            .await
    }

    /// Has the keeper close its duplicate.
    ///
    /// # Errors
    /// `Channel` when the keeper is gone.
    pub async fn withdraw(&self, name: &str) -> Result<(), DescriptorsError> {
        self.say(&FromService::Withdraw(name.to_owned()), &[]).await
    }

    async fn say(
        &self,
        message: &FromService,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), DescriptorsError> {
        self.channel
            .send(message, descriptors)
            .await
            .map_err(DescriptorsError::Channel)
    }
}

/// Why a descriptor was not had.
#[derive(Debug)]
pub enum Obtain<A, O> {
    /// It could not be opened.
    Open(O),
    /// It was opened and is not what it should be.
    Adopt(A),
    /// The keeper could not be told.
    Keeper(DescriptorsError),
}

const PARTS: usize = 64;
/// Version of the protocol.
const RELOADED_SINCE: u32 = 2;

/// Name of the API listener in the keeper's table.
pub(crate) const LISTENER: &str = "api";

/// Name of the plugin's listener in the keeper's table.
pub(crate) const PLUGIN_LISTENER: &str = "api-cni";

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io;

    use super::*;
    use crate::keeper::channel::{PROTOCOL, TablePart};
    use crate::test_run::run;

    fn part(names: &[&str], last: bool) -> FromKeeper {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        FromKeeper::Table(TablePart {
            names,
            last,
            restarts: 2,
            last_end: None,
            protocol: PROTOCOL,
            beside: false,
            upgraded: None,
        })
    }

    async fn next(keeper: &Channel) -> (FromService, usize) {
        let (message, descriptors) = keeper.receive().await.unwrap().unwrap();
        (message, descriptors.len())
    }

    fn file() -> io::Result<OwnedFd> {
        Ok(tempfile::tempfile()?.into())
    }

    #[test]
    fn the_table_is_taken_over_opened_deposited_and_the_rest_closed() {
        run(async {
            let (keeper, ours) = Channel::pair().unwrap();
            let (kept, bad, unread) = (file().unwrap(), file().unwrap(), file().unwrap());
            keeper
                .send(&part(&["bad", "kept"], false), &[bad.as_fd(), kept.as_fd()])
                .await
                .unwrap();
            keeper
                .send(&part(&["unread"], true), &[unread.as_fd()])
                .await
                .unwrap();
            let mut table = Descriptors::receive(ours).await.unwrap();
            assert!(table.is_take_over());
            assert_eq!(table.restarts, 2);
            let never = || -> Result<OwnedFd, Infallible> { panic!("inherited, not opened") };
            let adopt = |fd: OwnedFd| Ok::<_, Infallible>(fd);
            table.adopt_or_open("kept", adopt, never).await.unwrap();
            let tries = std::cell::Cell::new(0);
            let picky = |fd: OwnedFd| {
                tries.set(tries.get() + 1);
                if tries.get() == 1 {
                    Err("not what it was")
                } else {
                    Ok(fd)
                }
            };
            table.adopt_or_open("bad", picky, file).await.unwrap();
            table.adopt_or_open("new", adopt, file).await.unwrap();
            table.discard_rest().await.unwrap();
            for expected in [
                (FromService::Withdraw("bad".into()), 0),
                (FromService::Deposit("bad".into()), 1),
                (FromService::Deposit("new".into()), 1),
                (FromService::Withdraw("unread".into()), 0),
            ] {
                assert_eq!(next(&keeper).await, expected);
            }
        });
    }

    #[test]
    fn what_cannot_be_opened_is_told_and_not_deposited() {
        run(async {
            let (keeper, ours) = Channel::pair().unwrap();
            keeper.send(&part(&[], true), &[]).await.unwrap();
            let mut table = Descriptors::receive(ours).await.unwrap();
            assert!(!table.is_take_over());
            let adopt = |fd: OwnedFd| Ok::<_, Infallible>(fd);
            let refused = table
                .adopt_or_open("x", adopt, || Err::<OwnedFd, _>("no"))
                .await;
            assert!(matches!(refused, Err(Obtain::Open("no"))));
            drop(table);
            assert!(keeper.receive::<FromService>().await.unwrap().is_none());
        });
    }

    #[test]
    fn a_keeper_that_is_none_is_refused() {
        run(async {
            let refused = Descriptors::receive(file().unwrap()).await;
            assert!(matches!(refused, Err(DescriptorsError::NoKeeper(_))));
            let (keeper, ours) = Channel::pair().unwrap();
            keeper.send(&FromKeeper::Go, &[]).await.unwrap();
            let refused = Descriptors::receive(ours).await;
            assert!(matches!(refused, Err(DescriptorsError::Protocol)));
            let (keeper, ours) = Channel::pair().unwrap();
            keeper
                .send(&part(&["named-without-descriptor"], true), &[])
                .await
                .unwrap();
            let refused = Descriptors::receive(ours).await;
            assert!(matches!(refused, Err(DescriptorsError::Protocol)));
        });
    }

    #[test]
    fn go_is_waited_for_and_a_keepers_end_is_no_go() {
        run(async {
            let (keeper, ours) = Channel::pair().unwrap();
            keeper.send(&part(&[], true), &[]).await.unwrap();
            let table = Descriptors::receive(ours).await.unwrap();
            keeper.send(&FromKeeper::Go, &[]).await.unwrap();
            assert!(table.ready().await.unwrap());
            table.forwarding().await.unwrap();
            assert_eq!(next(&keeper).await.0, FromService::Ready);
            assert_eq!(next(&keeper).await.0, FromService::Forwarding);
            for (message, order) in [
                (FromKeeper::Pause, Order::Pause),
                (FromKeeper::Resume, Order::Resume),
                (FromKeeper::End, Order::End),
            ] {
                keeper.send(&message, &[]).await.unwrap();
                assert_eq!(table.order().await, order);
            }
            drop(keeper);
            assert_eq!(table.order().await, Order::KeeperEnded);
        });
    }
}
