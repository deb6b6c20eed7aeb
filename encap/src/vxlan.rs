//! VXLAN: the 8-byte header of RFC 7348 section 5, with the group policy extension (draft-smith-vxlan-group-policy).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! |G|R|R|R|I|R|R|R|R|D|R|R|A|R|R|R|        Group Policy ID        |
//! |                VXLAN Network Identifier       |   Reserved    |
//! ```

/// A VXLAN network identifier, 24 bits (RFC 7348 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vni(u32);

impl Vni {
    /// The identifier `value`, or `None` above 2²⁴ − 1.
    pub const fn new(value: u32) -> Option<Vni> {
        if value < 1 << 24 {
            Some(Vni(value))
        } else {
            None
        }
    }

    /// The number itself.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The two words of a VXLAN header. Judges nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    flags: u32,
    pub(crate) vni: Vni,
    reserved: u8,
}

impl Header {
    /// The header that flannel's kernel device sends: the I flag alone.
    pub(crate) const fn plain(vni: Vni) -> Header {
        Header {
            flags: FLAG_VNI,
            vni,
            reserved: 0,
        }
    }

    pub(crate) fn parse(bytes: &[u8; HEADER]) -> Header {
        let &[f0, f1, f2, f3, v0, v1, v2, reserved] = bytes;
        Header {
            flags: u32::from_be_bytes([f0, f1, f2, f3]),
            vni: Vni(u32::from_be_bytes([0, v0, v1, v2])),
            reserved,
        }
    }

    pub(crate) const fn emit(self) -> [u8; HEADER] {
        let [f0, f1, f2, f3] = self.flags.to_be_bytes();
        let [_, v0, v1, v2] = self.vni.0.to_be_bytes();
        [f0, f1, f2, f3, v0, v1, v2, self.reserved]
    }

    /// True when the I flag is set and no bit that we do not understand is: the kernel drops a header with "unparsed"
    /// bits left (`vxlan_rcv`). `gbp` adds the group policy bits to what is understood.
    pub(crate) const fn flags_allowed(self, gbp: bool) -> bool {
        let understood = if gbp {
            FLAG_VNI | GROUP_POLICY
        } else {
            FLAG_VNI
        };
        self.flags & FLAG_VNI != 0 && self.flags & !understood == 0 && self.reserved == 0
    }
}

/// Bytes of a VXLAN header.
pub(crate) const HEADER: usize = 8;

/// I: the VNI is valid.
const FLAG_VNI: u32 = 0x0800_0000;
/// G, D, A and the policy identifier.
const GROUP_POLICY: u32 = 0x8048_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vni_is_24_bits() {
        assert_eq!(Vni::new(0xff_ffff).map(Vni::get), Some(0xff_ffff));
        assert_eq!(Vni::new(0x100_0000), None);
    }

    #[test]
    fn plain_header_is_flannels() {
        let header = Header::plain(Vni::new(1).unwrap());
        assert_eq!(header.emit(), [8, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(Header::parse(&header.emit()), header);
    }

    #[test]
    fn each_unknown_bit_is_refused() {
        for bit in 0..64 {
            let word: u64 = 0x0800_0000_0000_0100 ^ (1 << bit);
            let header = Header::parse(&word.to_be_bytes());
            let vni_bit = (8..32).contains(&bit);
            assert_eq!(header.flags_allowed(false), vni_bit, "bit {bit}");
            let policy = (32..48).contains(&bit) || [63, 32 + 22, 32 + 19].contains(&bit);
            assert_eq!(
                header.flags_allowed(true),
                vni_bit || policy,
                "bit {bit} with group policy"
            );
        }
    }
}
