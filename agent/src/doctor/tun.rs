//! The tunnel device: what it is, or whether a start could have one. Why `/dev/net/tun` is refused is told apart: no file,
//! no module, the control group, no capability.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::config::text_file;
use crate::problems::Severity;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("tun");
    match &e.status {
        // It has one. Whether this process could have another says nothing of it.
        Ok(status) => {
            check.fact(format!(
                "{} ({}, {}), MTU {}",
                status.device, status.device_type, status.device_kind, status.device_mtu
            ));
            if status.offloads_given_up > 0 {
                check.fact(format!(
                    "the kernel has refused an offload {} times, each given up for a minute",
                    status.offloads_given_up
                ));
            }
        }
        Err(_) => {
            let place = Path::new(TUN);
            let opened = OpenOptions::new().read(true).write(true).open(place);
            let surroundings = Surroundings::read();
            let refused = opened.err();
            match fault(refused.as_ref(), &surroundings) {
                Some(finding) => check.find(finding),
                None if refused.is_some() => check.fact(format!(
                    "{TUN} is not there: a start makes it, with CAP_MKNOD"
                )),
                None => check.fact(format!("{TUN} can be opened, with CAP_NET_ADMIN")),
            }
        }
    }
    e.board.deal(&mut check);
    check.done()
}

/// What tells one refusal from another.
#[derive(Clone, Debug, Default)]
struct Surroundings {
    /// The kernel has the driver: `/proc/misc` lists it.
    has_driver: bool,
    /// This process has CAP_NET_ADMIN, where that can be read.
    may_administer: Option<bool>,
    /// It has CAP_MKNOD: a start makes the file where it is missing.
    may_make_files: Option<bool>,
    /// Its control group.
    group: String,
}

impl Surroundings {
    fn read() -> Surroundings {
        let read = |path: &str| text_file::read(Path::new(path), LONGEST).unwrap_or_default();
        let has_driver = read("/proc/misc")
            .lines()
            .any(|line| line.split_whitespace().nth(1) == Some("tun"));
        let status = read("/proc/thread-self/status");
        Surroundings {
            has_driver,
            may_administer: may(&status, CAP_NET_ADMIN),
            may_make_files: may(&status, CAP_MKNOD),
            group: read("/proc/thread-self/cgroup")
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned(),
        }
    }
}

/// Whether a capability is among the effective ones of proc(5).
fn may(status: &str, capability: u32) -> Option<bool> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(line.trim(), 16).ok()?;
    Some(effective & (1 << capability) != 0)
}

/// What is wrong, if anything is. `refused` is what open(2) gave.
fn fault(refused: Option<&io::Error>, around: &Surroundings) -> Option<Finding> {
    let Some(refused) = refused else {
        return (around.may_administer == Some(false)).then(|| {
            Finding::new("tun-no-capability", TUN, Severity::Error)
                .says(format!(
                    "{TUN} can be opened, but no device be made: this process lacks CAP_NET_ADMIN"
                ))
                .shown_by("CAP_NET_ADMIN is not among the effective capabilities of this process")
                .remedied_by(
                    "run as root, or with CAP_NET_ADMIN (systemd: AmbientCapabilities=CAP_NET_ADMIN; containers: --cap-add NET_ADMIN)",
                )
        });
    };
    let seen = format!("opening {TUN}: {refused}");
    let driver = match around.has_driver {
        true => "the kernel has the driver (/proc/misc lists tun)",
        false => "the kernel has no driver yet (/proc/misc does not list tun)",
    };
    let found = |code, sentence: &str, remedy: &str| {
        Finding::new(code, TUN, Severity::Error)
            .says(sentence)
            .shown_by(seen.clone())
            .shown_by(driver)
            .remedied_by(remedy)
    };
    let errno = refused.raw_os_error().map(Errno::from_raw_os_error);
    Some(match errno {
        Some(Errno::NOENT) if around.has_driver && around.may_make_files == Some(true) => {
            return None;
        }
        Some(Errno::NOENT) if around.has_driver => found(
            "tun-missing",
            "the device file is not there, so no tunnel device can be made",
            "make it (`mkdir -p /dev/net && mknod -m 0666 /dev/net/tun c 10 200`), in a container give it the device (--device /dev/net/tun), or CAP_MKNOD, with which a start makes the file",
        ),
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => found(
            "tun-no-module",
            "the kernel has no TUN driver, so no tunnel device can be made",
            "load it (`modprobe tun`), and at each boot by a file in /etc/modules-load.d",
        ),
        Some(Errno::PERM) => found(
            "tun-denied",
            "the control group's list of devices denies the device, though the file's mode allows it",
            "allow the container character device 10:200 (--device /dev/net/tun; systemd: DeviceAllow=/dev/net/tun rw); runc 1.2.0 to 1.2.3 lack it in their default list: use 1.2.4 or newer",
        )
        .shown_by(format!("control group {}", around.group)),
        Some(Errno::ACCESS) => found(
            "tun-denied",
            "the mode of the device file, or a file system that is mounted nodev, denies the device",
            "run as root, and mount the file system of /dev/net without nodev",
        ),
        _ => found(
            "tun-denied",
            "the kernel refuses the device",
            "look into the kernel's log (`dmesg`)",
        ),
    })
}

const TUN: &str = "/dev/net/tun";
/// capability.h
const CAP_NET_ADMIN: u32 = 12;
const CAP_MKNOD: u32 = 27;
/// Of the files of proc(5) that are read here, in bytes.
const LONGEST: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_is_told_from_the_others() {
        let has_driver = Surroundings {
            has_driver: true,
            may_administer: Some(true),
            may_make_files: Some(false),
            group: "0::/pod".to_owned(),
        };
        let without = Surroundings {
            has_driver: false,
            ..has_driver.clone()
        };
        let may_make = Surroundings {
            may_make_files: Some(true),
            ..has_driver.clone()
        };
        let errno = |errno: Errno| Some(io::Error::from(errno));
        for (refused, around, code) in [
            (None, &has_driver, None),
            (errno(Errno::NOENT), &has_driver, Some("tun-missing")),
            (errno(Errno::NOENT), &without, Some("tun-no-module")),
            (errno(Errno::NOENT), &may_make, None),
            (errno(Errno::NODEV), &may_make, Some("tun-no-module")),
            (errno(Errno::NXIO), &without, Some("tun-no-module")),
            (errno(Errno::NODEV), &has_driver, Some("tun-no-module")),
            (errno(Errno::PERM), &has_driver, Some("tun-denied")),
            (errno(Errno::ACCESS), &has_driver, Some("tun-denied")),
            (errno(Errno::BUSY), &has_driver, Some("tun-denied")),
        ] {
            let found = fault(refused.as_ref(), around);
            assert_eq!(found.as_ref().map(|found| &*found.code), code);
        }
        let denied = fault(errno(Errno::PERM).as_ref(), &has_driver).unwrap();
        assert!(denied.evidence.iter().any(|seen| seen.contains("0::/pod")));
        assert!(denied.remedy.contains("runc 1.2.0 to 1.2.3"));
        let powerless = Surroundings {
            may_administer: Some(false),
            ..has_driver
        };
        assert_eq!(fault(None, &powerless).unwrap().code, "tun-no-capability");
    }

    #[test]
    fn capabilities_are_read_as_the_kernel_prints_them() {
        let all = "CapEff:\t000001ffffffffff\n";
        let network = "CapEff:\t0000000000001000\n";
        for (status, capability, expected) in [
            (all, CAP_NET_ADMIN, Some(true)),
            (all, CAP_MKNOD, Some(true)),
            (network, CAP_NET_ADMIN, Some(true)),
            (network, CAP_MKNOD, Some(false)),
            ("CapEff:\t0000000000000fff\n", CAP_NET_ADMIN, Some(false)),
            ("CapEff:\t0000000008000000\n", CAP_MKNOD, Some(true)),
            ("Name:\tx\n", CAP_NET_ADMIN, None),
            ("CapEff:\tx\n", CAP_NET_ADMIN, None),
        ] {
            assert_eq!(may(status, capability), expected, "{status}");
        }
    }
}
