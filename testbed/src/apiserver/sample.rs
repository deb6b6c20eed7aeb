//! Nodes as clusters have them, of about 10 KB, with flannel's annotations.

use serde_json::{Value, json};

/// The Node `node-NUMBER` of up to 65,536, with a subnet of 10.0.0.0/8 and flannel's annotations for `vxlan`.
pub(super) fn node(number: u32) -> Value {
    let [_, _, high, low] = number.to_be_bytes();
    let name = format!("node-{number:05}");
    let (subnet, address) = (
        format!("10.{high}.{low}.0/24"),
        format!("172.16.{high}.{low}"),
    );
    json!({
        "metadata": {
            "name": name,
            "annotations": {
                "flannel.alpha.coreos.com/backend-data": format!(r#"{{"VNI":1,"VtepMAC":"02:00:00:00:{high:02x}:{low:02x}"}}"#),
                "flannel.alpha.coreos.com/backend-type": "vxlan",
                "flannel.alpha.coreos.com/kube-subnet-manager": "true",
                "flannel.alpha.coreos.com/public-ip": address,
                "kubeadm.alpha.kubernetes.io/cri-socket": "unix:///var/run/containerd/containerd.sock",
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "labels": {
                "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "m5.2xlarge", "topology.kubernetes.io/region": "eu-central-1",
                "topology.kubernetes.io/zone": "eu-central-1a",
            },
        },
        "spec": {
            "podCIDR": subnet, "podCIDRs": [subnet],
            "providerID": format!("aws:///eu-central-1a/i-{number:017x}"),
        },
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name},
            ],
            "capacity": resources("8", "32386544Ki"), "allocatable": resources("7910m", "31482Mi"),
            "conditions": conditions(),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "images": (0..IMAGES).map(image).collect::<Vec<_>>(),
            "nodeInfo": {
                "architecture": "amd64", "bootID": format!("{number:08x}-1111-4222-8333-444444444444"),
                "containerRuntimeVersion": "containerd://1.7.27", "kernelVersion": "6.1.0-37-amd64",
                "kubeProxyVersion": "v1.32.4", "kubeletVersion": "v1.32.4",
                "machineID": format!("{number:032x}"), "operatingSystem": "linux",
                "osImage": "Debian GNU/Linux 12 (bookworm)",
                "systemUUID": format!("{number:08x}-5555-4666-8777-888888888888"),
            },
        },
    })
}

fn resources(cpu: &str, memory: &str) -> Value {
    json!({
        "cpu": cpu, "ephemeral-storage": "101430960Ki", "hugepages-1Gi": "0", "hugepages-2Mi": "0",
        "memory": memory, "pods": "110",
    })
}

fn conditions() -> Vec<Value> {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": "2025-01-01T10:00:00Z", "lastTransitionTime": "2025-01-01T09:00:00Z",
        })
    };
    vec![
        condition(
            "NetworkUnavailable",
            "False",
            "FlannelIsUp",
            "Flannel is running on this node",
        ),
        condition(
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        condition(
            "DiskPressure",
            "False",
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure",
        ),
        condition(
            "PIDPressure",
            "False",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        ),
        condition(
            "Ready",
            "True",
            "KubeletReady",
            "kubelet is posting ready status",
        ),
    ]
}

fn image(number: usize) -> Value {
    let digest = format!("{:064x}", 0xfeed_beef_u64 * (number as u64 + 1));
    json!({
        "names": [
            format!("registry.example.org/team/service-{number}@sha256:{digest}"),
            format!("registry.example.org/team/service-{number}:v1.{number}.0"),
        ],
        "sizeBytes": 31_000_000 + number * 1_234_567,
    })
}

/// So many that the whole is of 10 KB: a kubelet reports up to 50.
const IMAGES: usize = 36;
