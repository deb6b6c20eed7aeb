//! Programs of the kernel path at devices, with tc(8) as the independent oracle.

use std::os::fd::AsFd;
use std::path::Path;

use dataplane::kernel_path::{KernelPath, Program, Sizes};
use tartan::host::kernel_path::filters::{AttachOutcome, Direction, Hook};
use tartan::host::{Host, HostError};

use super::namespace::Namespace;

const DEVICE: &str = "tt0123456789";
const SIZES: Sizes = Sizes {
    peers: 16,
    pods: 16,
    flows: 16,
};

fn namespace() -> Namespace {
    let namespace = Namespace::new();
    namespace.ip(&format!("link add {DEVICE} type veth peer name eth9"));
    namespace
}

fn hook(namespace: &Namespace) -> Hook {
    let links = namespace.list("link show");
    let link = links.iter().find(|link| link["ifname"] == DEVICE);
    let index = link.unwrap()["ifindex"].as_u64().unwrap();
    Hook {
        index: u32::try_from(index).unwrap(),
        device: DEVICE.to_owned(),
        direction: Direction::Ingress,
    }
}

/// The program of another build, whose filter has our preference, handle and prefix; `place` says of which packets.
fn attach_other(namespace: &Namespace, place: &str) {
    let objects = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dataplane/tests");
    // tc(8) names the filter by the file.
    let named = namespace.root().join("tartan:pod_out");
    let object = objects.join("kernel_path_programs/tunnel_key.o");
    std::fs::copy(object, &named).unwrap();
    namespace.tc(&format!(
        "filter add {place} pref 42000 handle 0x7a bpf direct-action object-file {} section classifier/from_peer",
        named.display()
    ));
}

/// What tc(8) lists of ours at the device.
fn listed(namespace: &Namespace) -> Vec<String> {
    let all = namespace.tc(&format!("filter show dev {DEVICE} ingress"));
    let ours = all.lines().filter(|line| line.contains("handle 0x7a"));
    ours.map(str::to_owned).collect()
}

/// One call of an agent with programs of its own.
fn attach(namespace: &Namespace, hook: &Hook) -> Result<AttachOutcome, HostError> {
    let state = namespace.state_dir();
    namespace.inside(|| async move {
        let path = KernelPath::load(SIZES).unwrap();
        let host = Host::open(&state).await?;
        let program = path.program(Program::PodOut);
        host.attach_or_detach(hook, Program::PodOut.name(), program.as_fd())
            .await
    })
}

fn detach(namespace: &Namespace, hook: &Hook) -> bool {
    let state = namespace.state_dir();
    let detached = namespace.inside(|| async move { Host::open(&state).await?.detach(hook).await });
    detached.unwrap()
}

#[test]
fn a_program_takes_the_place_of_the_one_before() {
    let namespace = namespace();
    let hook = hook(&namespace);
    namespace.tc(&format!("qdisc add dev {DEVICE} clsact"));
    attach_other(&namespace, &format!("dev {DEVICE} ingress protocol all"));
    assert!(matches!(attach(&namespace, &hook), Ok(AttachOutcome::New)));
    let found = listed(&namespace);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("tartan:pod_out direct-action"),
        "{found:?}"
    );
    assert!(detach(&namespace, &hook));
    assert!(!detach(&namespace, &hook));
    assert!(listed(&namespace).is_empty());
}

/// A program that was pinned is taken over only where it is attached: another one of its name has other tables.
#[test]
fn a_program_is_told_from_another_of_its_name() {
    let namespace = namespace();
    let hook = hook(&namespace);
    let state = namespace.state_dir();
    namespace.inside(|| async move {
        let [ours, other] = [(); 2].map(|()| KernelPath::load(SIZES).unwrap());
        let host = Host::open(&state).await.unwrap();
        let program = |path: &KernelPath| path.program(Program::PodOut).try_clone_to_owned();
        let (ours, other) = (program(&ours).unwrap(), program(&other).unwrap());
        assert!(!host.is_attached(ours.as_fd()).await.unwrap());
        let name = Program::PodOut.name();
        host.attach(&hook, name, ours.as_fd()).await.unwrap();
        assert!(host.is_attached(ours.as_fd()).await.unwrap());
        assert!(!host.is_attached(other.as_fd()).await.unwrap());
        let no_program = std::fs::File::open("/dev/null").unwrap();
        assert!(!host.is_attached(no_program.as_fd()).await.unwrap());
    });
}

/// The kernel refuses a program while the device is there: for another protocol than that of the filter that has the
/// preference, and in a block of filters that has a number. The program before goes all the same.
#[test]
fn where_a_program_is_refused_the_one_before_is_detached() {
    for (qdisc, place) in [
        ("clsact", format!("dev {DEVICE} ingress protocol ip")),
        ("ingress_block 7 clsact", "block 7 protocol all".to_owned()),
    ] {
        let namespace = namespace();
        let hook = hook(&namespace);
        namespace.tc(&format!("qdisc add dev {DEVICE} {qdisc}"));
        attach_other(&namespace, &place);
        assert_eq!(listed(&namespace).len(), 1, "{place}");
        let outcome = attach(&namespace, &hook);
        assert!(
            matches!(outcome, Ok(AttachOutcome::Refused { detached: true, .. })),
            "{place}: {outcome:?}"
        );
        assert!(listed(&namespace).is_empty(), "{place}");
    }
}

#[test]
fn a_device_that_is_gone_is_no_refusal() {
    let namespace = namespace();
    let hook = hook(&namespace);
    namespace.ip(&format!("link delete {DEVICE}"));
    assert!(matches!(
        attach(&namespace, &hook),
        Ok(AttachOutcome::NoDevice)
    ));
    assert!(!detach(&namespace, &hook));
}
