//! Bridges with pods of another plugin: their subnet, and whether packets on them meet the rules of Services.
//!
//! Between two pods on one bridge a packet that a Service translated comes back past the rules that would translate it
//! again, unless the bridge hands its packets to them (`br_netfilter`). So this matters where kube-proxy translates and a
//! bridge leads to pods, and nowhere else.

use std::path::Path;

use super::configuration::list;
use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::config::text_file;
use crate::problems::Severity;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("bridges");
    e.board.deal(&mut check);
    let Ok(picture) = &e.picture else {
        check.unknown("interfaces cannot be listed");
        return check.done();
    };
    let subnets = e.subnets();
    let bridges: Vec<String> = picture
        .pod_interfaces(&subnets, e.device().unwrap_or_default())
        .into_iter()
        .filter(|name| {
            Path::new("/sys/class/net")
                .join(name)
                .join("bridge")
                .exists()
        })
        .collect();
    if bridges.is_empty() {
        check.fact("no bridge leads to pods of this node");
        return check.done();
    }
    check.fact(format!("pods on {}", list(&bridges)));
    let translates = e.firewall.as_ref().is_ok_and(|survey| survey.kube_proxy);
    if !translates {
        check.fact("no rules of kube-proxy, so br_netfilter does not matter");
        return check.done();
    }
    for (is_v4, key) in [
        (true, "bridge-nf-call-iptables"),
        (false, "bridge-nf-call-ip6tables"),
    ] {
        if subnets.iter().any(|net| net.addr().is_ipv4() == is_v4) {
            calls(&mut check, key, &bridges);
        }
    }
    check.done()
}

fn calls(check: &mut Check, key: &str, bridges: &[String]) {
    let read = text_file::read(&Path::new(BRIDGE).join(key), LONGEST);
    let value = read.as_deref().ok().map(str::trim);
    check.fact(match value {
        Some(value) => format!("net.bridge.{key} = {value}"),
        None => format!("{BRIDGE}/{key} is not there: br_netfilter is not loaded"),
    });
    if value == Some("1") {
        return;
    }
    let remedy = match value {
        None => format!(
            "load it (`modprobe br_netfilter`), and at each boot by a file in /etc/modules-load.d; then `sysctl -w net.bridge.{key}=1`"
        ),
        Some(_) => {
            format!("run `sysctl -w net.bridge.{key}=1`, and put it into a file of /etc/sysctl.d")
        }
    };
    check.find(
        Finding::new("bridge-netfilter-off", key, Severity::Error)
            .says(format!(
                "packets between pods on {} do not meet kube-proxy's rules: a pod that asks a Service whose endpoint is on the same bridge gets no answer",
                list(bridges)
            ))
            .remedied_by(remedy),
    );
}

const BRIDGE: &str = "/proc/sys/net/bridge";
/// A digit and a newline, in bytes.
const LONGEST: u64 = 16;
