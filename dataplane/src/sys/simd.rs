//! Which vector instructions this processor has.

#[cfg(target_arch = "x86_64")]
use encap::checksum;

/// Lets checksums be summed by the widest instructions that there are.
pub(crate) fn sum_checksums() {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        checksum::sum_long_by(|bytes| {
            // WHY: 1,410 bytes are summed in 26 ns, portably in 37 ns; every payload byte is summed once.
            // SAFETY: avx2 asks for a processor with AVX2, and this closure is made where it was just detected.
            unsafe { checksum::avx2(bytes) }
        });
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn both_twins_agree_on_every_length_and_alignment() {
        if !std::arch::is_x86_feature_detected!("avx2") {
            return;
        }
        sum_checksums();
        let check = |bytes: &[u8]| {
            let portable = checksum::portable(bytes);
            // WHY: short sums never ask for it otherwise.
            // SAFETY: avx2 asks for a processor with AVX2, which was just detected.
            let wide = unsafe { checksum::avx2(bytes) };
            assert_eq!((wide, checksum::sum(bytes)), (portable, portable));
        };
        let mut bytes: Vec<u8> = (0..70_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        for start in 0..8 {
            for end in start..700 {
                check(&bytes[start..end]);
            }
            check(&bytes[start..start + 65_535]);
        }
        bytes.fill(0xff);
        (0..700).for_each(|end| check(&bytes[..end]));
        check(&bytes[..65_535]);
        bytes.fill(0);
        (0..700).for_each(|end| check(&bytes[..end]));
        check(&bytes);
    }
}
