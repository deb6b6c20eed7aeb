//! The programs of the object that are attached to devices.

use std::os::fd::{AsRawFd, BorrowedFd};

/// A program of traffic control (`dataplane/bpf/`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// Egress of a tunnel device without Ethernet header (TUN).
    TunnelOut,
    /// Egress of a tunnel device with Ethernet header (TAP).
    TunnelOutEther,
    /// Ingress of the underlay device.
    UnderlayIn,
    /// Ingress of the VXLAN device that holds the port of the format.
    GroIn,
    /// Ingress of a pod's host end.
    PodOut,
    /// Egress of a pod's host end.
    PodIn,
}

impl Program {
    /// Every program.
    pub const ALL: [Program; 6] = [
        Program::TunnelOut,
        Program::TunnelOutEther,
        Program::UnderlayIn,
        Program::GroIn,
        Program::PodOut,
        Program::PodIn,
    ];

    /// Name of its function in the object.
    pub const fn name(self) -> &'static str {
        match self {
            Program::TunnelOut => "tunnel_out",
            Program::TunnelOutEther => "tunnel_out_ether",
            Program::UnderlayIn => "underlay_in",
            Program::GroIn => "gro_in",
            Program::PodOut => "pod_out",
            Program::PodIn => "pod_in",
        }
    }
}

/// The kernel's number of a program that is loaded: `/proc` says it of every descriptor (linux/kernel/bpf/syscall.c,
/// bpf_prog_show_fdinfo). `None` of a descriptor of anything else, or without `/proc`.
pub fn program_id(program: BorrowedFd<'_>) -> Option<u32> {
    let path = format!("/proc/self/fdinfo/{}", program.as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
    line?.trim().parse().ok()
}
