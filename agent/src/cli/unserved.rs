//! What becomes of packets of pods while no agent answers, as the kernel of this network namespace shows it.

use super::run::runtime;
use super::table::list;
use crate::host::{KernelReader, Unserved};

/// What the kernel shows; nothing where it cannot be asked.
pub(super) fn read() -> Unserved {
    let Ok(runtime) = runtime() else {
        return Unserved::default();
    };
    let found = runtime.block_on(async { KernelReader::open()?.unserved().await });
    found.unwrap_or_default()
}

/// The same in a sentence; none where there is nothing of an agent.
pub(super) fn sentence(found: &Unserved) -> Option<String> {
    let Unserved {
        refused,
        device,
        is_held,
    } = found;
    match (device, &refused[..]) {
        (Some(device), _) if *is_held => Some(format!(
            "meanwhile packets of pods wait in {device}, as many as its queue holds"
        )),
        (_, []) => None,
        (Some(device), networks) => Some(format!(
            "meanwhile the kernel answers packets to {} as unreachable; {device} stays for the next start, so that connections through it can go on",
            list(networks)
        )),
        (None, networks) => Some(format!(
            "meanwhile the kernel answers packets to {} as unreachable",
            list(networks)
        )),
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;

    #[test]
    fn what_refuses_is_said() {
        let networks = [
            "10.244.0.0/16".parse().unwrap(),
            "fd00:10:244::/48".parse().unwrap(),
        ];
        let found = |refused: &[IpNet], device: Option<&str>, is_held| {
            sentence(&Unserved {
                refused: refused.to_vec(),
                device: device.map(str::to_owned),
                is_held,
            })
        };
        assert_eq!(found(&[], None, false), None);
        assert_eq!(found(&[], Some("tartan0"), false), None);
        let gone = found(&networks, None, false).unwrap();
        assert!(
            gone.contains("10.244.0.0/16, fd00:10:244::/48 as unreachable"),
            "{gone}"
        );
        let stays = found(&networks, Some("tartan0"), false).unwrap();
        assert!(stays.contains("as unreachable; tartan0 stays"), "{stays}");
        let waits = found(&networks, Some("tartan0"), true).unwrap();
        assert!(waits.contains("wait in tartan0"), "{waits}");
    }
}
