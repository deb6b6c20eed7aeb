//! The steps into use and out of use, in the order in which nothing is lost. Each finds what is done already.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::engine::Engine;
use dataplane::kernel_path::{Facts, KernelPath, KernelPathError, Program, Sizes};
use dataplane::snapshot::Snapshot;
use dataplane::spec::Spec;
use tokio::time::sleep;
use tracing::{info, warn};

use super::reason::refused;
use super::site::Site;
use super::{KernelPathControl, OffReason, PREFIX, SharedPath, monotonic};
use crate::causes::causes;
use crate::config::KernelPathMode;
use crate::control::model::{Known, Model};
use crate::control::underlay::slot::ReceivePorts;
use crate::control::underlay::sockets::UnderlaySockets;
use crate::host::kernel_path::filters::{AttachOutcome, Hook};
use crate::host::{Host, HostError, Picture};
use crate::keeper::descriptors::Descriptors;

/// What the kernel path is brought into use with.
pub(crate) struct Surroundings<'a> {
    /// The kernel.
    pub(crate) host: &'a Host,
    /// What it listed last.
    pub(crate) picture: &'a Picture,
    /// What the node knows.
    pub(crate) known: &'a Known,
    /// The same with the attachments.
    pub(crate) model: &'a Model,
    /// The tables published last.
    pub(crate) spec: &'a Spec,
    /// The workers.
    pub(crate) engine: &'a Engine,
    /// The keeper.
    pub(crate) keeper: &'a Descriptors,
    /// The sockets that the workers read.
    pub(crate) sockets: &'a mut UnderlaySockets,
}

impl Surroundings<'_> {
    fn private_port(&self) -> Option<u16> {
        self.sockets.private_port(&self.known.net_conf.backend)
    }

    fn format_ports(&self) -> ReceivePorts {
        ReceivePorts::of(&self.known.net_conf.backend)
    }
}

impl KernelPathControl {
    /// Brings it into use; in use already, follows what has changed.
    pub(super) async fn go_live(
        &mut self,
        with: &mut Surroundings<'_>,
        mut site: Site,
    ) -> Result<(), OffReason> {
        // First, because it may be a reason against all the rest.
        self.read_ways(with, &site).await?;
        self.is_gone = false;
        let path = self.ensure_loaded(with).await?.path;
        let disciplined = match self.mode {
            KernelPathMode::Auto => Some(with.host.interfaces_with_disciplines().await?),
            KernelPathMode::Off | KernelPathMode::Stateless => None,
        };
        let pods = super::facts::pods(with, disciplined.as_ref());
        let ends = pods.iter();
        let ends = ends.filter_map(|(name, pod)| Some((pod.end?.ifindex.get(), name.clone()?)));
        site.pod_ends = ends.collect();
        site.device_index = match with.private_port() {
            Some(_) => with.host.has_vxlan_device(&site.device).await?,
            None => None,
        };
        let is_complete = site.device_index.is_some() && self.inherited.next.is_none();
        let next_hops = self.next_hops(with.host, &site).await?;
        let unusable = self.unusable(with.known, with.spec, with.engine, &next_hops);
        let facts = Facts {
            on: is_complete && path.lock().is_on(),
            underlay: site.underlay,
            tunnel: site.tunnel,
            private_port: with.private_port(),
            next_hops,
            unusable,
            path_mtu: HashMap::new(),
            pods: pods.into_iter().map(|(_, pod)| pod).collect(),
            flows: self.mode == KernelPathMode::Auto,
        };
        self.site = Some(site.clone());
        self.follow_with(with.spec, facts)?;
        path.lock().renew(monotonic())?;
        self.renewed = Some(Instant::now());
        self.attach(with.host, &path, &site).await?;
        self.pin(&path);
        if let Some(next) = self.inherited.next.take() {
            self.finish_move(with, next).await?;
        }
        if with.private_port() != Some(self.port) {
            let ports = with.format_ports().with_private(Some(self.port));
            self.move_sockets(with, ports).await?;
        }
        let index = self.ensure_device(with.host, &site).await?;
        if site.device_index != Some(index) {
            site.device_index = Some(index);
            self.attach(with.host, &path, &site).await?;
            self.site = Some(site);
        }
        self.flow_pods = super::facts::flow_pods(with, &disciplined.unwrap_or_default());
        self.follow_flows(with.spec, with.engine.snapshot())?;
        if let Some(facts) = self.facts.clone() {
            self.follow_with(with.spec, Facts { on: true, ..facts })?;
        }
        if !self.is_live {
            self.flows.wake();
            info!("the kernel path is in use");
            self.is_live = true;
        }
        Ok(())
    }

    /// Takes it out of use, and everything of it from the host.
    pub(super) async fn go_off(&mut self, with: &mut Surroundings<'_>) -> Result<(), OffReason> {
        if self.is_gone {
            return Ok(());
        }
        let was_live = std::mem::take(&mut self.is_live);
        let is_private = with.private_port().is_some() || self.inherited.next.is_some();
        if self.path.is_none() && (is_private || !self.inherited.descriptors.is_empty()) {
            // Its programs send on what arrives, until our sockets are at the format's port.
            if let Err(reason) = self.load_to_pass_on(with).await {
                warn!(
                    "kernel path: {reason}; the programs of the service before stay until our sockets have the port again"
                );
                self.is_orphaned = true;
            }
        }
        if let Some(path) = &self.path {
            path.lock().switch_off()?;
        }
        self.flows.stop();
        if let Some(facts) = &mut self.facts {
            facts.on = false;
        }
        if let Some(next) = self.inherited.next.take() {
            self.finish_move(with, next).await?;
        }
        let device = crate::host::kernel_path::device_name(&with.known.config.device_name);
        if is_private {
            // What the device has taken and not delivered yet.
            sleep(DRAIN).await;
        }
        if let Some(change) = with.host.remove_vxlan_device(&device).await? {
            self.note(&change.to_string());
        }
        if with.private_port().is_some() {
            self.move_sockets(with, with.format_ports()).await?;
        }
        self.detach_all(with.host).await?;
        if let Some(path) = self.path.take() {
            match path.lock().counters() {
                Ok(now) => self.past = Some(self.past.map_or(now, |past| past.plus(&now))),
                Err(error) => warn!("what the programs counted is lost: {error}"),
            }
            let names: Vec<String> = {
                let path = path.lock();
                let descriptors = path.descriptors().into_iter();
                descriptors.map(|(name, _)| name).collect()
            };
            self.withdraw(with.keeper, names).await?;
        }
        let inherited = std::mem::take(&mut self.inherited.descriptors);
        let names = inherited.into_iter().map(|(name, _)| name);
        self.withdraw(with.keeper, names).await?;
        self.unpin();
        self.facts = None;
        self.site = None;
        self.is_gone = true;
        if was_live {
            info!("the kernel path is out of use");
        }
        Ok(())
    }

    /// At an orderly end: switches the programs off, and takes them and the VXLAN device from the host. Whatever program
    /// comes next may have the format's port, and gets what arrives there. The sockets close with the service.
    pub(crate) async fn leave(&mut self, host: &Host) {
        if self.is_gone || self.path.is_none() {
            return;
        }
        self.flows.stop();
        self.switch_off(OffReason::Configured);
        if let Err(reason) = self.take_from_host(host).await {
            warn!("the kernel path stays on the host, until `tartan cleanup`: {reason}");
        }
    }

    async fn take_from_host(&mut self, host: &Host) -> Result<(), OffReason> {
        if let Some(site) = &self.site
            && let Some(change) = host.remove_vxlan_device(&site.device.name).await?
        {
            self.note(&change.to_string());
        }
        for hook in self.known_hooks(host).await? {
            host.detach(&hook).await?;
        }
        self.unpin();
        Ok(())
    }

    /// Programs of a service that is to have no kernel path, while what arrives still comes to the private port: those of
    /// the service before, or in their place one that passes everything on to that port.
    async fn load_to_pass_on(&mut self, with: &Surroundings<'_>) -> Result<(), OffReason> {
        let Loaded { path, is_adopted } = self.ensure_loaded(with).await?;
        if is_adopted {
            path.lock().set_private_port(with.private_port())?;
            return Ok(());
        }
        let site = super::site::of(with).await?;
        let facts = Facts {
            on: false,
            underlay: site.underlay,
            tunnel: site.tunnel,
            private_port: with.private_port(),
            next_hops: HashMap::new(),
            unusable: HashSet::new(),
            path_mtu: HashMap::new(),
            pods: Vec::new(),
            flows: false,
        };
        self.follow_with(with.spec, facts)?;
        let hooks = site.hooks().into_iter();
        for (hook, program) in hooks.filter(|(_, program)| *program == Program::UnderlayIn) {
            self.attach_one(with.host, &path, &hook, program).await?;
            self.is_orphaned = false;
            // What is attached is looked for again.
            self.hooks = None;
        }
        Ok(())
    }

    /// The programs of the service before this one, or else new ones, which the keeper gets.
    async fn ensure_loaded(&mut self, with: &Surroundings<'_>) -> Result<Loaded, OffReason> {
        if let Some(path) = self.path.clone() {
            let is_adopted = true;
            return Ok(Loaded { path, is_adopted });
        }
        let deposited = std::mem::take(&mut self.inherited.descriptors);
        let names: Vec<String> = deposited.iter().map(|(name, _)| name.clone()).collect();
        let deposited = (!deposited.is_empty()).then_some(deposited);
        let adopted = adopt(Ok(deposited));
        let is_deposited = adopted.is_some();
        let adopted = match adopted {
            Some(adopted) => Some(adopted),
            None => self.adopt_pinned(with.host).await,
        };
        let is_adopted = adopted.is_some();
        let sendable = adopted.as_ref().map(KernelPath::sendable);
        self.sent_before = sendable.map(|peers| (peers, Instant::now()));
        let path = match adopted {
            Some(path) => path,
            None => match KernelPath::load(Sizes::for_cluster(with.spec.cluster.peers.len())) {
                Ok(path) => path,
                Err(error) => {
                    // The programs and tables of the service before were refused too, and serve no later service.
                    self.withdraw(with.keeper, names).await?;
                    self.unpin();
                    return Err(error.into());
                }
            },
        };
        let path = SharedPath::new(path);
        if !is_deposited {
            self.deposit(with.keeper, &path, names).await?;
        }
        // Programs of before that are attached still read other tables.
        self.is_orphaned |= !is_adopted;
        self.path = Some(path.clone());
        Ok(Loaded { path, is_adopted })
    }

    /// What a service has pinned that was killed with its keeper, if it is what is attached here.
    async fn adopt_pinned(&self, host: &Host) -> Option<KernelPath> {
        let adopted = adopt(self.pins.read())?;
        let is_attached = host.is_attached(adopted.program(Program::UnderlayIn));
        match is_attached.await {
            Ok(is_attached) => is_attached.then_some(adopted),
            Err(error) => {
                info!("what is pinned is not taken over: {}", causes(&error));
                None
            }
        }
    }

    /// Pins programs and tables that are attached. Otherwise a kill of keeper and service ends the flows, unless systemd keeps
    /// the descriptors.
    fn pin(&mut self, path: &SharedPath) {
        if std::mem::replace(&mut self.is_pinned, true) {
            return;
        }
        let directory = self.pins.directory().display();
        let why = match self.pins.write(&path.lock()) {
            Ok(true) => return,
            Ok(false) => format!("there is no BPF file system for {directory}"),
            Err(error) => causes(&error),
        };
        info!(
            "kernel path: if keeper and service are killed and systemd does not keep their descriptors, flows end: {why}"
        );
    }

    /// What stays pinned is adopted only while it is attached.
    fn unpin(&mut self) {
        self.is_pinned = false;
        if let Err(error) = self.pins.remove() {
            let directory = self.pins.directory().display();
            warn!(
                "programs and tables of the kernel path stay pinned in {directory}: {}",
                causes(&error)
            );
        }
    }

    /// Takes programs and tables of those names out of the keeper's table.
    async fn withdraw(
        &self,
        keeper: &Descriptors,
        names: impl IntoIterator<Item = String>,
    ) -> Result<(), OffReason> {
        for name in names {
            let gone = keeper.withdraw(&format!("{PREFIX}{name}")).await;
            gone.map_err(|error| refused(&error))?;
        }
        Ok(())
    }

    /// Gives the keeper programs and tables, and takes back those of `before` that have no successor.
    async fn deposit(
        &self,
        keeper: &Descriptors,
        path: &SharedPath,
        before: Vec<String>,
    ) -> Result<(), OffReason> {
        let mut copies = Vec::new();
        for (name, descriptor) in path.lock().descriptors() {
            let copy = descriptor.try_clone_to_owned();
            copies.push((name, copy.map_err(|error| refused(&error))?));
        }
        for (name, copy) in &copies {
            let name = format!("{PREFIX}{name}");
            let given = keeper.deposit(&name, copy.as_fd()).await;
            given.map_err(|error| refused(&error))?;
        }
        for name in before {
            if copies.iter().all(|(new, _)| *new != name) {
                let gone = keeper.withdraw(&format!("{PREFIX}{name}")).await;
                gone.map_err(|error| refused(&error))?;
            }
        }
        Ok(())
    }

    /// Gives the tables other facts.
    pub(super) fn follow_with(&mut self, spec: &Spec, facts: Facts) -> Result<(), OffReason> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        let is_same = self.facts.as_ref() == Some(&facts) && self.version == spec.version;
        if !is_same {
            let followed = path.lock().follow(spec, &facts)?;
            self.version = followed.version;
            self.facts = Some(facts);
        }
        Ok(())
    }

    /// Gives the thread of the flows other facts; starts it where none runs.
    fn follow_flows(&mut self, spec: &Spec, snapshot: Arc<Snapshot>) -> Result<(), OffReason> {
        let (Some(path), Some(site)) = (self.path.clone(), &self.site) else {
            return Ok(());
        };
        let facts = super::facts::of_flows(spec, snapshot, site, self.port, &self.flow_pods);
        let open = || Ok(path.lock().flows()?);
        self.flows
            .follow(open, facts)
            .map_err(|error| refused(&error))
    }

    /// The same for tables that were just published, where the thread runs.
    pub(super) fn inform_flows(&mut self, spec: &Spec, snapshot: Arc<Snapshot>) {
        if let Some(site) = self.site.as_ref().filter(|_| self.flows.is_running()) {
            let facts = super::facts::of_flows(spec, snapshot, site, self.port, &self.flow_pods);
            self.flows.inform(facts);
        }
    }

    /// Attaches each program to its device, and detaches those that are elsewhere.
    async fn attach(
        &mut self,
        host: &Host,
        path: &SharedPath,
        site: &Site,
    ) -> Result<(), OffReason> {
        let before = self.known_hooks(host).await?;
        let wanted = site.hooks();
        // Wherever this ends, `go_off` finds what is attached by then.
        let others = wanted.iter().map(|(hook, _)| hook);
        let others = others.filter(|hook| !is_among(&before, hook));
        self.hooks = Some(before.iter().chain(others).cloned().collect());
        let mut marks_anew = false;
        let mut refused_ends = HashSet::new();
        for (hook, program) in &wanted {
            if *program == Program::GroIn && marks_anew && is_among(&before, hook) {
                // What the program before has marked by its own mark is on its way to the one that knows it.
                sleep(DRAIN).await;
            }
            if site.is_pod_end(hook) {
                if !self.attach_at_pod(host, path, hook, *program).await? {
                    refused_ends.insert(hook.clone());
                }
                continue;
            }
            let attached = self.attach_one(host, path, hook, *program).await;
            if *program == Program::UnderlayIn {
                self.is_orphaned = attached.is_err();
                marks_anew = attached.as_ref().is_ok_and(|is_new| *is_new);
            }
            attached?;
        }
        let wanted: Vec<Hook> = wanted.into_iter().map(|(hook, _)| hook).collect();
        for hook in before.iter().filter(|hook| !is_among(&wanted, hook)) {
            if host.detach(hook).await? {
                self.note(&format!("detached the program from {}", hook.device));
            }
        }
        self.hooks = Some(wanted);
        self.refused_ends = refused_ends;
        Ok(())
    }

    /// Attaches a program to the host's end of a pod, which may end at any moment. Returns whether the kernel takes it. If not,
    /// the pod's packets pass the host's stack: a program of a service before, whose flows nothing revokes any more, does not
    /// stay there.
    async fn attach_at_pod(
        &self,
        host: &Host,
        path: &SharedPath,
        hook: &Hook,
        program: Program,
    ) -> Result<bool, OffReason> {
        let descriptor = program_of(path, program)?;
        let (name, device) = (program.name(), &hook.device);
        let outcome = host.attach_or_detach(hook, name, descriptor.as_fd());
        match outcome.await? {
            AttachOutcome::New => self.note(&format!("attached {name} to {device}")),
            AttachOutcome::WasThere | AttachOutcome::NoDevice => {}
            AttachOutcome::Refused { error, detached } => {
                if detached {
                    self.note(&format!("detached the program from {device}"));
                }
                if !self.refused_ends.contains(hook) {
                    let why = causes(&error);
                    warn!("kernel path: {name} is not attached to {device}: {why}");
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Attaches a program, in the place of the one before. Returns whether it was not there.
    async fn attach_one(
        &self,
        host: &Host,
        path: &SharedPath,
        hook: &Hook,
        program: Program,
    ) -> Result<bool, OffReason> {
        let descriptor = program_of(path, program)?;
        let is_new = host
            .attach(hook, program.name(), descriptor.as_fd())
            .await?;
        if is_new {
            self.note(&format!("attached {} to {}", program.name(), hook.device));
        }
        Ok(is_new)
    }

    /// Where programs of ours are attached.
    async fn known_hooks(&mut self, host: &Host) -> Result<Vec<Hook>, OffReason> {
        match &self.hooks {
            Some(hooks) => Ok(hooks.clone()),
            None => Ok(host.hooks_of_kernel_path().await?),
        }
    }

    /// The VXLAN device; the kernel frees the port of sockets that were closed a moment later.
    async fn ensure_device(&self, host: &Host, site: &Site) -> Result<u32, OffReason> {
        let deadline = Instant::now() + PORT_PATIENCE;
        loop {
            match host.ensure_vxlan_device(&site.device).await {
                Ok((index, changes)) => {
                    for change in changes {
                        self.note(&change.to_string());
                    }
                    return Ok(index);
                }
                Err(HostError::VxlanPort { .. }) if Instant::now() < deadline => {
                    sleep(PORT_STEP).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Moves the sockets that receive VXLAN over IPv4 to another port.
    pub(super) async fn move_sockets(
        &mut self,
        with: &mut Surroundings<'_>,
        ports: ReceivePorts,
    ) -> Result<(), OffReason> {
        let deadline = Instant::now() + PORT_PATIENCE;
        let next = loop {
            match with.sockets.at_port(ports) {
                Ok(next) => break next,
                Err(_) if Instant::now() < deadline => sleep(PORT_STEP).await,
                Err(error) => return Err(refused(&error)),
            }
        };
        let given = next.deposit_next(with.sockets, with.keeper).await;
        given.map_err(|error| refused(&error))?;
        self.finish_move(with, next).await
    }

    /// Sends what arrives to sockets that are open and in the keeper's table, and has the workers read them. Where that is
    /// refused they stay open, with what has come to them, and the next try goes on with them: they have the port.
    pub(super) async fn finish_move(
        &mut self,
        with: &mut Surroundings<'_>,
        next: UnderlaySockets,
    ) -> Result<(), OffReason> {
        if next.bound() != with.sockets.bound() {
            // The node has another address by now.
            let forgotten = next.withdraw_next(with.keeper).await;
            return forgotten.map_err(|error| refused(&error));
        }
        let adopted = self.adopt_sockets(with, &next).await;
        if adopted.is_err() && !with.sockets.are(&next) {
            self.inherited.next = Some(next);
        }
        adopted
    }

    async fn adopt_sockets(
        &mut self,
        with: &mut Surroundings<'_>,
        next: &UnderlaySockets,
    ) -> Result<(), OffReason> {
        // The workers' duplicates first, which may be refused.
        let sockets = next.duplicates().map_err(|error| refused(&error))?;
        let port = next.private_port(&with.known.net_conf.backend);
        self.send_to_port(with.host, port).await?;
        // Until the workers have read to the end what the sockets of before have.
        sleep(DRAIN).await;
        let deadline = Instant::now() + DRAIN_PATIENCE;
        while !with.sockets.are_drained() && Instant::now() < deadline {
            sleep(PORT_STEP).await;
        }
        if let Err(error) = with.engine.rebind(sockets) {
            // The workers go on with the sockets of before. A program without tables of ours is detached by now: what arrives
            // then waits in the new sockets until the next refresh.
            self.send_to_port(with.host, with.private_port()).await?;
            return Err(refused(&error));
        }
        let before = std::mem::replace(with.sockets, next.clone());
        let given = with.sockets.deposit(&before, with.keeper).await;
        given.map_err(|error| refused(&error))?;
        let forgotten = with.sockets.withdraw_next(with.keeper).await;
        forgotten.map_err(|error| refused(&error))?;
        // The last duplicates of the old sockets close here and in the workers.
        drop(before);
        let port = port.unwrap_or(with.known.net_conf.backend.vxlan_port());
        self.note(&format!("VXLAN over IPv4 is received at port {port}"));
        Ok(())
    }

    /// Has the programs send what they pass on to our sockets at that port, without all else that tables follow: those that
    /// cannot follow the spec must not keep it from them. Without its tables a program stays at its port: only without the
    /// program does what arrives stay at the port of the format.
    async fn send_to_port(&mut self, host: &Host, port: Option<u16>) -> Result<(), OffReason> {
        if self.is_orphaned && port.is_none() {
            self.detach_all(host).await?;
        }
        if let Some(path) = &self.path {
            path.lock().set_private_port(port)?;
        }
        if let Some(facts) = &mut self.facts {
            facts.private_port = port;
        }
        Ok(())
    }

    /// Detaches every program.
    async fn detach_all(&mut self, host: &Host) -> Result<(), OffReason> {
        for hook in self.known_hooks(host).await? {
            if host.detach(&hook).await? {
                self.note(&format!("detached the program from {}", hook.device));
            }
        }
        self.hooks = Some(Vec::new());
        self.is_orphaned = false;
        Ok(())
    }
}

/// Programs and tables that are in the kernel.
struct Loaded {
    path: SharedPath,
    /// They were there before this call.
    is_adopted: bool,
}

/// What an earlier service left, if it is whole and of this build.
fn adopt(left: Result<Option<Vec<(String, OwnedFd)>>, KernelPathError>) -> Option<KernelPath> {
    let adopted = left.and_then(|left| left.map(KernelPath::adopt).transpose());
    adopted.unwrap_or_else(|error| {
        info!("programs of the service before are not taken over: {error}");
        None
    })
}

fn program_of(path: &SharedPath, program: Program) -> Result<OwnedFd, OffReason> {
    let path = path.lock();
    let descriptor = path.program(program).try_clone_to_owned();
    descriptor.map_err(|error| refused(&error))
}

fn is_among(hooks: &[Hook], hook: &Hook) -> bool {
    let mut hooks = hooks.iter();
    hooks.any(|other| other.index == hook.index && other.direction == hook.direction)
}

/// How long the port of a socket or device that was closed is waited for.
const PORT_PATIENCE: Duration = Duration::from_secs(1);
const PORT_STEP: Duration = Duration::from_millis(2);
/// What a program has passed on has reached its socket or device by then, on a busy machine too, where the kernel's own
/// threads wait for a core.
const DRAIN: Duration = Duration::from_millis(50);
/// A worker reads what has arrived within less than a millisecond, if it has a core; without end another process could
/// keep a socket filled.
const DRAIN_PATIENCE: Duration = Duration::from_millis(500);
