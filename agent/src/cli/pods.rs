//! `tartan pods`: who is delivered to on this node.

use super::amount::duration;
use super::table::{Column, list, render as table};
use crate::api::wire::Pods;

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
            list(pod.addresses.iter().map(|address| address.addr())),
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

/// Whether a record was refused.
pub(super) fn problem(pods: &Pods) -> bool {
    !pods.refused.is_empty()
}

/// Container ids have 64 hexadecimal digits; twelve tell them apart, as every runtime's tools show them.
fn short(container: &str) -> String {
    container.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::{Pod, RefusedRecord};

    #[test]
    fn pods_prefixes_and_refused_records() {
        let pods = Pods {
            pods: vec![Pod {
                pod: Some("default/web-0".into()),
                container: "0123456789abcdef".into(),
                ifname: "eth0".into(),
                addresses: vec!["10.244.1.2/32".parse().unwrap()],
                mac: "ee:ee:ee:00:00:01".into(),
                host_ifname: "tt0123456789".into(),
                created: 1000,
            }],
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
}
