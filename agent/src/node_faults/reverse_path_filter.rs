//! A strict reverse-path filter drops what a peer sends where the way back to that peer leads through another interface than
//! the one at which its datagrams arrive. It is judged by the routes. The filter is of IPv4 alone.

use std::net::IpAddr;

use crate::host::{Picture, reverse_path_filter};
use crate::problems::Problem;

/// Judges the filters of the tunnel device and of the interfaces that carry the overlay. `peers` are asked for only where a
/// filter is strict.
pub fn judge(
    device: Option<&str>,
    underlay: &[String],
    picture: Option<&Picture>,
    peers: impl FnOnce() -> Vec<IpAddr>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(device) = device
        && reverse_path_filter(device) == Some(STRICT)
    {
        problems.push(Problem::ReversePathFilter {
            interface: device.to_owned(),
            astray: Vec::new(),
        });
    }
    let strict = |interface: &&String| reverse_path_filter(interface) == Some(STRICT);
    let strict: Vec<&String> = underlay.iter().filter(strict).collect();
    if let (false, Some(picture)) = (strict.is_empty(), picture) {
        let astray = astray(peers(), underlay, |peer| picture.way_to(peer));
        let found = strict.into_iter().filter(|_| !astray.is_empty());
        problems.extend(found.map(|interface| Problem::ReversePathFilter {
            interface: interface.clone(),
            astray: astray.clone(),
        }));
    }
    problems
}

/// The interfaces that carry the overlay, by the name of the underlay as `tartan status` has it.
pub fn interfaces(underlay: &str) -> Vec<String> {
    // What is no name says that there is none.
    let names = underlay.split(", ").filter(|name| !name.contains(' '));
    names.map(str::to_owned).collect()
}

/// Peers that the kernel would send to by another interface, with that interface.
fn astray(
    peers: Vec<IpAddr>,
    underlay: &[String],
    way_to: impl Fn(IpAddr) -> Option<String>,
) -> Vec<String> {
    let peers = peers.into_iter().filter(IpAddr::is_ipv4);
    let astray = peers.filter_map(|address| {
        let way = way_to(address)?;
        (!underlay.contains(&way)).then(|| format!("{address} by {way}"))
    });
    astray.take(MOST_NAMED).collect()
}

const STRICT: i32 = 1;
const MOST_NAMED: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_behind_another_interface_are_astray() {
        let peers: Vec<IpAddr> = vec![
            [192, 0, 2, 2].into(),
            [192, 0, 2, 3].into(),
            [192, 0, 2, 4].into(),
            "2001:db8::2".parse().unwrap(),
        ];
        let way = |peer: IpAddr| match peer {
            IpAddr::V4(v4) if v4.octets()[3] == 2 => Some("eth0".to_owned()),
            IpAddr::V4(v4) if v4.octets()[3] == 3 => Some("detour".to_owned()),
            // No route at all is another fault.
            IpAddr::V4(_) => None,
            IpAddr::V6(_) => Some("detour".to_owned()),
        };
        let underlay = ["eth0".to_owned()];
        assert_eq!(
            astray(peers.clone(), &underlay, way),
            ["192.0.2.3 by detour"]
        );
        let both = ["eth0".to_owned(), "detour".to_owned()];
        assert_eq!(astray(peers, &both, way), [""; 0]);
    }
}
