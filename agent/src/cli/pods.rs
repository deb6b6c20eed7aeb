//! `tartan pods`: the pods and prefixes that this node delivers to.

use std::net::IpAddr;

use cni_shim::{Bandwidth, RateLimit};

use super::amount::{bits, bytes, duration};
use super::table::{Column, list};
use super::view::{View, total};
use crate::api::wire::{Pod, PodState, Pods};

/// The pods as text; `now` in Unix seconds.
pub(super) fn render(pods: &Pods, now: u64, view: &View) -> String {
    let rows = pods.pods.iter().map(|pod| row(pod, now));
    let routed = pods.kernel_prefixes.iter().map(|prefix| {
        let mut row = vec!["-".to_owned(); COLUMNS.len()];
        row.splice(1..3, [prefix.to_string(), KERNEL_ROUTED.to_owned()]);
        row
    });
    let mut text = match pods.pods.len() {
        0 => "no pods are attached\n".to_owned(),
        _ => String::new(),
    };
    let rows: Vec<Vec<String>> = rows.chain(routed).collect();
    let picked = view.pick(&rows, Some(0));
    let shown = picked
        .iter()
        .filter_map(|number| rows.get(*number).cloned());
    text.push_str(&view.table(&COLUMNS, shown));
    let (all, is_pod) = (pods.pods.len(), |number: &&usize| {
        **number < pods.pods.len()
    });
    if all > 0 {
        let shown = picked.iter().filter(is_pod).count();
        text.push_str(&format!("{}\n", total(shown, all, "pod", "pods")));
    }
    if !pods.kernel_prefixes.is_empty() {
        text.push_str(&format!(
            "\n{KERNEL_ROUTED}: the kernel routes this prefix to another plugin's interface, and Tartan delivers to it\n"
        ));
    }
    if pods.pods.iter().any(|pod| pod.state == PodState::Leaving) {
        text.push_str(
            "\nleaving: the interface is gone; if no runtime deletes the pod, Tartan frees its addresses after the time of reclaim-after\n",
        );
    }
    for pod in pods.pods.iter().filter(|pod| pod.state == PodState::Faulty) {
        let fault = pod
            .fault
            .as_deref()
            .unwrap_or("its link is not as it should be");
        text.push_str(&format!("\nfaulty: {}: {fault}\n", pod.host_ifname));
    }
    if pods.pods.iter().any(is_stranded) {
        text.push_str(
            "\nstranded: the address is in no subnet of this node, so peers do not send packets for it here; delete and \
             recreate the pod\n",
        );
    }
    if !pods.refused.is_empty() {
        let rows = pods
            .refused
            .iter()
            .map(|refused| vec![refused.file.clone(), refused.reason.clone()]);
        text.push('\n');
        text.push_str(&view.table(
            &[Column::Words("REFUSED RECORD"), Column::Words("REASON")],
            rows,
        ));
    }
    text
}

/// Whether a record was refused, or a pod is stranded or faulty.
pub(super) fn problem(pods: &Pods) -> bool {
    let is_lost = |pod: &Pod| is_stranded(pod) || pod.state == PodState::Faulty;
    !pods.refused.is_empty() || pods.pods.iter().any(is_lost)
}

fn row(pod: &Pod, now: u64) -> Vec<String> {
    let traffic = |count: fn(&Pod) -> Option<u64>| count(pod).map_or("-".to_owned(), bytes);
    vec![
        pod.pod.clone().unwrap_or_else(|| "-".to_owned()),
        list(pod.addresses.iter().map(|net| address(pod, net.addr()))),
        state_name(pod.state).to_owned(),
        pod.host_ifname.clone(),
        short(&pod.container),
        pod.ifname.clone(),
        traffic(|pod| Some(pod.traffic?.sent_bytes)),
        traffic(|pod| Some(pod.traffic?.received_bytes)),
        traffic(|pod| {
            let carried = pod.in_kernel?;
            Some(carried.sent_bytes.saturating_add(carried.received_bytes))
        }),
        limits(pod.bandwidth.unwrap_or_default()),
        duration(now.saturating_sub(pod.created)),
    ]
}

fn state_name(state: PodState) -> &'static str {
    match state {
        PodState::Reserved => "reserved",
        PodState::Attached => "attached",
        PodState::Stranded => "stranded",
        PodState::Leaving => "leaving",
        PodState::Faulty => "faulty",
    }
}

fn limits(bandwidth: Bandwidth) -> String {
    let way =
        |limit: Option<RateLimit>, way| limit.map(|limit| format!("{} {way}", bits(limit.rate)));
    list(
        [
            way(bandwidth.egress, "sent"),
            way(bandwidth.ingress, "received"),
        ]
        .into_iter()
        .flatten(),
    )
}

fn address(pod: &Pod, address: IpAddr) -> String {
    if pod.stranded.contains(&address) {
        format!("{address} (stranded)")
    } else {
        address.to_string()
    }
}

fn is_stranded(pod: &Pod) -> bool {
    !pod.stranded.is_empty()
}

/// The first twelve of a container id's 64 hexadecimal digits, as the runtimes' tools print them.
fn short(container: &str) -> String {
    container.chars().take(12).collect()
}

/// The state of a prefix that the kernel routes and no attachment of this node has.
const KERNEL_ROUTED: &str = "kernel-routed";

/// What `--sort` and `--filter` know.
pub(super) const COLUMNS: [Column; 11] = [
    Column::Words("POD"),
    Column::Words("ADDRESSES"),
    Column::Words("STATE"),
    Column::Words("HOST INTERFACE"),
    Column::Words("CONTAINER"),
    Column::Words("INTERFACE"),
    Column::Number("SENT"),
    Column::Number("RECEIVED"),
    Column::Number("IN KERNEL"),
    Column::Words("LIMITS"),
    Column::Words("AGE"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::{Carried, Dropped, PodTraffic, RefusedRecord};

    fn pod(addresses: &[&str]) -> Pod {
        Pod {
            state: PodState::Attached,
            network: "tartan".into(),
            traffic: None,
            dropped: Dropped::default(),
            in_kernel: None,
            bandwidth: None,
            pod: Some("default/web-0".into()),
            container: "0123456789abcdef".into(),
            ifname: "eth0".into(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            stranded: Vec::new(),
            mac: "ee:ee:ee:00:00:01".into(),
            host_ifname: "tt0123456789".into(),
            created: 1000,
            fault: None,
        }
    }

    #[test]
    fn pods_prefixes_and_refused_records_are_printed() {
        let mut busy = pod(&["10.244.1.2/32"]);
        busy.traffic = Some(PodTraffic {
            sent_packets: 3,
            sent_bytes: 300,
            received_packets: 2048,
            received_bytes: 2_097_152,
        });
        busy.in_kernel = Some(Carried {
            sent_bytes: 1024,
            received_bytes: 2048,
            ..Carried::default()
        });
        busy.bandwidth = Some(Bandwidth {
            ingress: Some(RateLimit {
                rate: 10_000_000,
                burst: 0,
            }),
            egress: None,
        });
        let pods = Pods {
            pods: vec![busy],
            kernel_prefixes: vec!["10.244.1.128/25".parse().unwrap()],
            refused: vec![RefusedRecord {
                file: "x:eth0.json".into(),
                reason: "truncated".into(),
            }],
        };
        assert_eq!(
            render(&pods, 1090, &View::default()),
            "\
POD            ADDRESSES        STATE          HOST INTERFACE  CONTAINER     INTERFACE   SENT  RECEIVED  IN KERNEL  LIMITS              AGE
default/web-0  10.244.1.2       attached       tt0123456789    0123456789ab  eth0       300 B  2.00 MiB   3.00 KiB  10 Mbit/s received  1 min 30 s
-              10.244.1.128/25  kernel-routed  -               -             -              -         -          -  -                   -
1 pod

kernel-routed: the kernel routes this prefix to another plugin's interface, and Tartan delivers to it

REFUSED RECORD  REASON
x:eth0.json     truncated
"
        );
        assert!(problem(&pods));
        assert_eq!(
            render(&Pods::default(), 0, &View::default()),
            "no pods are attached\n"
        );
        assert!(!problem(&Pods::default()));
    }

    #[test]
    fn a_stranded_address_is_marked_and_its_remedy_named() {
        let mut pods = Pods {
            pods: vec![pod(&["10.244.9.2/32", "fd00:1::2/128"])],
            ..Pods::default()
        };
        assert!(!problem(&pods));
        pods.pods[0].stranded = vec!["10.244.9.2".parse().unwrap()];
        pods.pods[0].state = PodState::Stranded;
        let text = render(&pods, 1001, &View::default());
        assert!(text.contains("10.244.9.2 (stranded), fd00:1::2"), "{text}");
        assert!(
            text.contains("\nstranded: the address is in no subnet")
                && text.contains("recreate the pod"),
            "{text}"
        );
        assert!(problem(&pods));
    }

    #[test]
    fn a_faulty_pod_is_a_problem_and_says_why() {
        let mut pods = Pods {
            pods: vec![pod(&["10.244.1.2/32"])],
            ..Pods::default()
        };
        pods.pods[0].state = PodState::Faulty;
        pods.pods[0].fault = Some("the kernel refuses".to_owned());
        let text = render(&pods, 1001, &View::default());
        assert!(
            text.contains(" faulty ")
                && text.contains("\nfaulty: tt0123456789: the kernel refuses\n"),
            "{text}"
        );
        assert!(problem(&pods));
    }

    #[test]
    fn a_leaving_pod_is_explained_and_no_problem() {
        let mut pods = Pods {
            pods: vec![pod(&["10.244.1.2/32"])],
            ..Pods::default()
        };
        pods.pods[0].state = PodState::Leaving;
        let text = render(&pods, 1001, &View::default());
        assert!(
            text.contains(" leaving ") && text.contains("frees its addresses after"),
            "{text}"
        );
        assert!(!problem(&pods), "a runtime may be deleting it");
    }
}
