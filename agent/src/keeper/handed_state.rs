//! The keeper's own program replaced: everything that it has goes on to the next program in the same process.
//!
//! Theory of operation. After an upgrade the keeper is the one part that is still of the old program. It executes the new one
//! over itself (execve(2)), so its process id stays, by which a service manager knows it, and its child stays its child. What
//! is open and not close-on-exec survives: the table's descriptors, the channel, the lock and a memfd with the [`State`],
//! which says by their numbers what they are. [`VARIABLE`] names the memfd, and the process that it is meant for. No
//! configuration is read and nothing is opened, so a keeper that went on before goes on after.
//!
//! A program that cannot be executed leaves the old keeper as it was. One that does not understand the state must not be
//! executed: it is asked for its [`FORMAT`] before ([`super::release`]).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dataplane::{execute, inherited};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tracing::{info, warn};

use super::channel::{Channel, Upgraded};
use super::child::{Program, Service};
use super::lock::Lock;
use super::progress::{Ended, Progress, Step};
use super::running::Running;
use super::service_manager::{LISTEN_VARIABLES, ServiceManager};
use super::supervision::{Keeper, Verdict};
use super::table::DescriptorTable;
use crate::signals::Signals;

/// The format of [`State`]: another number where a keeper of before could not go on from it.
pub const FORMAT: u32 = 1;

/// What a keeper goes on from.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    format: u32,
    run_dir: OsString,
    program: OsString,
    arguments: Vec<OsString>,
    /// The file by which the agent was started; none of a keeper that did not keep it: `program`.
    #[serde(default)]
    started_by: Option<OsString>,
    /// The filter of the log.
    pub(crate) log: String,
    /// None of a keeper that did not know of it.
    #[serde(default)]
    instance: Option<String>,
    restarts: u64,
    last_end: Option<String>,
    upgraded: Option<Upgraded>,
    /// Process id of the service, and for how long it has run, in milliseconds.
    service: i32,
    service_age_ms: u64,
    is_reload_due: bool,
    channel: RawFd,
    lock: RawFd,
    table: BTreeMap<String, RawFd>,
    /// Names that the service manager keeps.
    stored: Vec<String>,
    /// The connection of the command that asked, and the last word for it.
    progress: Option<RawFd>,
    ended: Ended,
}

impl Keeper {
    /// Executes the program of the service that forwards now in the place of this one. Returns where that is not to be: then
    /// this keeper goes on, and the command is told. `Stop` where the agent was asked to stop before.
    pub(super) async fn execute(
        &mut self,
        running: &Running,
        progress: &Progress,
        signals: &mut Signals,
        mut ended: Ended,
    ) -> Option<Verdict> {
        let reason = match self
            .execute_unasked(running, progress, signals, &ended)
            .await
        {
            Ok(reason) => reason,
            Err(verdict) => {
                ended.reason = Some("the agent was asked to stop".to_owned());
                progress.say(&Step::Ended(ended));
                return Some(verdict);
            }
        };
        warn!("the keeper stays what it is: {reason}");
        ended.reason = Some(format!(
            "the service is of the new program, and the keeper is not: {reason}; restart the agent when it suits"
        ));
        progress.say(&Step::Ended(ended));
        None
    }

    /// Looks first for signals that came since the last look, which would be lost with this program; those from here on wait for
    /// the next. Returns why this program goes on.
    async fn execute_unasked(
        &mut self,
        running: &Running,
        progress: &Progress,
        signals: &mut Signals,
        ended: &Ended,
    ) -> Result<String, Verdict> {
        let blocked = match execute::block_signals() {
            Ok(blocked) => blocked,
            Err(error) => return Ok(error.to_string()),
        };
        let reason = loop {
            if !self.manager.settled(SETTLING).await {
                // What still waits for a service manager would be lost.
                break "the service manager does not take what it is told".to_owned();
            }
            // The runtime looks at its handlers' pipe when it waits for something.
            match timeout(LOOK, signals.stop_or_reload()).await {
                Ok(true) => return Err(Verdict::Stop),
                Ok(false) => self.reload(&running.service),
                Err(_elapsed) => match self.try_execute(running, progress, ended) {
                    Err(error) => break error.to_string(),
                    Ok(never) => match never {},
                },
            }
        };
        drop(blocked);
        Ok(reason)
    }

    fn try_execute(
        &self,
        running: &Running,
        progress: &Progress,
        ended: &Ended,
    ) -> io::Result<std::convert::Infallible> {
        let state = self.state(running, progress, ended);
        let mut file = File::from(memfd_create("keeper-state", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(&state)?)?;
        file.rewind()?;
        let handed = Handed::of(self, running, progress, &file)?;
        let own = VARIABLE.to_owned();
        let environment = std::env::vars_os().filter(|(name, _)| {
            let name = name.to_str();
            !LISTEN_VARIABLES.iter().any(|used| name == Some(used)) && name != Some(VARIABLE)
        });
        let value = format!("{}:{}", std::process::id(), file.as_raw_fd());
        let environment = environment.chain([(own.into(), value.into())]);
        let arguments = std::env::args_os().collect();
        let executed = execute::execute(self.program.path.as_os_str(), arguments, environment);
        // It was not. No program that this one executes later is to get any of it.
        drop(handed);
        executed
    }

    fn state(&self, running: &Running, progress: &Progress, ended: &Ended) -> State {
        let number = |descriptor: BorrowedFd<'_>| descriptor.as_raw_fd();
        let names = self.table.names().into_iter();
        State {
            format: FORMAT,
            run_dir: self.run_dir.clone().into(),
            program: self.program.path.clone().into(),
            arguments: self.program.arguments.clone(),
            started_by: Some(self.started_by.clone().into()),
            log: self.log.clone(),
            instance: self.instance.clone(),
            restarts: self.restarts,
            last_end: self.last_end.clone(),
            upgraded: self.upgraded.clone(),
            service: running.service.id(),
            service_age_ms: u64::try_from(running.service.age().as_millis()).unwrap_or(0),
            is_reload_due: running.is_reload_due,
            channel: number(running.channel.descriptor()),
            lock: number(self.lock.descriptor()),
            table: names
                .filter_map(|name| {
                    let descriptor = number(self.table.descriptor(&name)?);
                    Some((name, descriptor))
                })
                .collect(),
            stored: self.manager.stored().map(str::to_owned).collect(),
            progress: progress.descriptor().map(number),
            ended: ended.clone(),
        }
    }
}

/// Descriptors that survive an execution. Dropping it undoes that.
struct Handed<'a>(Vec<BorrowedFd<'a>>);

impl<'a> Handed<'a> {
    fn of(
        keeper: &'a Keeper,
        running: &'a Running,
        progress: &'a Progress,
        state: &'a File,
    ) -> io::Result<Handed<'a>> {
        let mut handed = Handed(Vec::new());
        let own = [
            running.channel.descriptor(),
            keeper.lock.descriptor(),
            state.as_fd(),
        ];
        let all = own.into_iter().chain(progress.descriptor());
        for descriptor in all.chain(keeper.table.descriptors()) {
            fcntl_setfd(descriptor, FdFlags::empty())?;
            handed.0.push(descriptor);
        }
        Ok(handed)
    }
}

impl Drop for Handed<'_> {
    fn drop(&mut self) {
        for descriptor in &self.0 {
            // Refused for no descriptor that is open.
            let _ = fcntl_setfd(descriptor, FdFlags::CLOEXEC);
        }
    }
}

/// What the program before this one left for it, if it did.
///
/// # Errors
/// Why that cannot be used: then no keeper can go on, and the service ends too.
pub fn take() -> Option<io::Result<State>> {
    let value = std::env::var(VARIABLE).ok()?;
    let (process, number) = value.split_once(':')?;
    // The variable may be meant for another process, which has handed its environment on.
    if process.parse() != Ok(std::process::id()) {
        return None;
    }
    let number = number.parse().ok()?;
    Some(read(number))
}

fn read(number: RawFd) -> io::Result<State> {
    let mut text = Vec::new();
    let file = File::from(inherited::take(number)?);
    file.take(LONGEST).read_to_end(&mut text)?;
    let state: State = serde_json::from_slice(&text)?;
    if state.format != FORMAT {
        let error = format!("format {} is not {FORMAT}", state.format);
        return Err(io::Error::new(io::ErrorKind::InvalidData, error));
    }
    Ok(state)
}

impl State {
    /// The keeper and the service that it has, and the last word to the command that asked for this program.
    ///
    /// # Errors
    /// Where a descriptor or the service is not what the state says.
    pub(super) fn adopt(self) -> io::Result<(Keeper, Running)> {
        let run_dir = PathBuf::from(self.run_dir);
        let program = PathBuf::from(self.program);
        let lock = inherited::take(self.lock)?;
        let mut manager = ServiceManager::from_environment();
        for name in &self.stored {
            manager.note_stored(name);
        }
        let mut table = DescriptorTable::default();
        for (name, number) in self.table {
            let kept = inherited::take(number).and_then(|descriptor| {
                let kept = table.deposit(name.clone(), vec![descriptor]);
                kept.map_err(io::Error::other)
            });
            if let Err(error) = kept {
                warn!(name, %error, "a descriptor is lost with the keeper's program");
            }
        }
        let channel = inherited::take(self.channel)?;
        let channel = Channel::adopt(channel).map_err(io::Error::other)?;
        let id = Pid::from_raw(self.service).ok_or(io::ErrorKind::InvalidData)?;
        let age = Duration::from_millis(self.service_age_ms);
        let born = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
        let mut running = Running::of(channel, Service::adopt(id, born)?);
        running.has_table = true;
        running.is_reload_due = self.is_reload_due;
        let keeper = Keeper {
            table,
            manager,
            lock: Lock::adopt(lock, &run_dir.join(super::LOCK_FILE)),
            run_dir,
            started_by: self
                .started_by
                .map_or_else(|| program.clone(), PathBuf::from),
            program: Program {
                path: program,
                arguments: self.arguments,
            },
            log: self.log,
            instance: self.instance,
            restarts: self.restarts,
            last_end: self.last_end,
            has_forwarded: true,
            is_reread_due: false,
            forwarding_since: Some(Instant::now()),
            upgraded: self.upgraded,
        };
        keeper.watch(&mut running);
        info!(
            descriptors = keeper.table.names().len(),
            service = running.service.id(),
            "the keeper goes on, of the new program"
        );
        let progress = self.progress.map(inherited::take).transpose();
        let progress: Option<OwnedFd> = progress.unwrap_or_default();
        let mut ended = self.ended;
        ended.keeper = true;
        Progress::new(progress).say(&Step::Ended(ended));
        Ok((keeper, running))
    }
}

/// Process id, and number of the memfd.
pub(super) const VARIABLE: &str = "KEEPER_STATE";
/// Bytes of a state: 512 names and the arguments of the program.
const LONGEST: u64 = 4 * 1024 * 1024;
/// For the runtime to look for signals that have come.
const LOOK: Duration = Duration::from_millis(5);
/// How long a service manager has to take what it is told.
const SETTLING: Duration = Duration::from_secs(1);
