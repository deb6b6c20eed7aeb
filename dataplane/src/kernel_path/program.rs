//! The programs of the object.

/// A program of the object (`dataplane/bpf/`).
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
