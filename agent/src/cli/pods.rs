//! `tartan pods`: who is delivered to on this node.

use std::net::IpAddr;

use super::amount::duration;
use super::table::{Column, list, render as table};
use crate::api::wire::{Pod, Pods};

/// The pods as text; `now` in Unix seconds.
pub(super) fn render(pods: &Pods, now: u64) -> String {
    let columns = [
        Column::Words("POD"),
        Column::Words("ADDRESSES"),
        Column::Words("HOST INTERFACE"),
        Column::Words("CONTAINER"),
        Column::Words("INTERFACE"),
        Column::Words("AGE"),
    ];
    let rows = pods.pods.iter().map(|pod| {
        vec![
            pod.pod.clone().unwrap_or_else(|| "-".to_owned()),
            list(pod.addresses.iter().map(|net| address(pod, net.addr()))),
            pod.host_ifname.clone(),
            short(&pod.container),
            pod.ifname.clone(),
            duration(now.saturating_sub(pod.created)),
        ]
    });
    let mut text = match pods.pods.len() {
        0 => "no pods are attached\n".to_owned(),
        _ => table(&columns, rows),
    };
    if pods.pods.iter().any(is_stranded) {
        text.push_str(
            "\nstranded: the address lies in no subnet of this node any more, so peers send it elsewhere; delete and \
             recreate the pod\n",
        );
    }
    if !pods.kernel_prefixes.is_empty() {
        let prefixes = list(&pods.kernel_prefixes);
        text.push_str(&format!(
            "\ndelivered to by the kernel's routes: {prefixes}\n"
        ));
    }
    if !pods.refused.is_empty() {
        let rows = pods
            .refused
            .iter()
            .map(|refused| vec![refused.file.clone(), refused.reason.clone()]);
        text.push('\n');
        text.push_str(&table(
            &[Column::Words("REFUSED RECORD"), Column::Words("WHY")],
            rows,
        ));
    }
    text
}

/// Whether a record was refused or a pod is stranded.
pub(super) fn problem(pods: &Pods) -> bool {
    !pods.refused.is_empty() || pods.pods.iter().any(is_stranded)
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

/// Container ids have 64 hexadecimal digits; twelve tell them apart, as every runtime's tools show them.
fn short(container: &str) -> String {
    container.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::RefusedRecord;

    fn pod(addresses: &[&str]) -> Pod {
        Pod {
            pod: Some("default/web-0".into()),
            container: "0123456789abcdef".into(),
            ifname: "eth0".into(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            stranded: Vec::new(),
            mac: "ee:ee:ee:00:00:01".into(),
            host_ifname: "tt0123456789".into(),
            created: 1000,
        }
    }

    #[test]
    fn pods_prefixes_and_refused_records() {
        let pods = Pods {
            pods: vec![pod(&["10.244.1.2/32"])],
            kernel_prefixes: vec!["10.244.1.128/25".parse().unwrap()],
            refused: vec![RefusedRecord {
                file: "x:eth0.json".into(),
                reason: "truncated".into(),
            }],
        };
        assert_eq!(
            render(&pods, 1090),
            "\
POD            ADDRESSES   HOST INTERFACE  CONTAINER     INTERFACE  AGE
default/web-0  10.244.1.2  tt0123456789    0123456789ab  eth0       1 min 30 s

delivered to by the kernel's routes: 10.244.1.128/25

REFUSED RECORD  WHY
x:eth0.json     truncated
"
        );
        assert!(problem(&pods));
        assert_eq!(render(&Pods::default(), 0), "no pods are attached\n");
        assert!(!problem(&Pods::default()));
    }

    #[test]
    fn a_stranded_address_is_marked_and_the_remedy_named() {
        let mut pods = Pods {
            pods: vec![pod(&["10.244.9.2/32", "fd00:1::2/128"])],
            ..Pods::default()
        };
        assert!(!problem(&pods));
        pods.pods[0].stranded = vec!["10.244.9.2".parse().unwrap()];
        assert_eq!(
            render(&pods, 1001),
            "\
POD            ADDRESSES                         HOST INTERFACE  CONTAINER     INTERFACE  AGE
default/web-0  10.244.9.2 (stranded), fd00:1::2  tt0123456789    0123456789ab  eth0       1 s

stranded: the address lies in no subnet of this node any more, so peers send it elsewhere; delete and recreate the pod
"
        );
        assert!(problem(&pods));
    }
}
