//! The one's complement sum of many bytes, portable and with AVX2.
//!
//! The sum is the same in either byte order but for a swap of the result (RFC 1071 section 2 (B)), and words may be of
//! any even width (2 (C)): so bytes are added as wide native words, and what overflows is added in again at the end.

use std::sync::OnceLock;

/// The one's complement sum of `bytes`, any length. Zero only when every byte is zero.
pub fn sum(bytes: &[u8]) -> u16 {
    match LONG.get() {
        Some(long) if bytes.len() >= LEAST => long(bytes),
        _ => portable(bytes),
    }
}

/// From now on, and in the whole process, [`sum`] sums long runs of bytes by `long`. The first call stands.
///
/// Whether a processor has an instruction is found out at run time, and a function that needs it is called by `unsafe`
/// code, which this crate has none of: its user finds out and calls. `long` must agree with [`portable`].
pub fn sum_long_by(long: fn(&[u8]) -> u16) {
    // A second call changes nothing.
    let _ = LONG.set(long);
}

/// [`sum`] on any processor.
pub fn portable(bytes: &[u8]) -> u16 {
    let (words, tail) = bytes.as_chunks::<8>();
    let (blocks, rest) = words.as_chunks::<8>();
    // Add and add-with-carry, in two chains that the processor runs side by side. Written out, because what iterator
    // adapters become depends on how they are compiled.
    let (mut a, mut b) = (0, 0);
    for [w0, w1, w2, w3, w4, w5, w6, w7] in blocks {
        a += wide(w0) + wide(w1) + wide(w2) + wide(w3);
        b += wide(w4) + wide(w5) + wide(w6) + wide(w7);
    }
    let [a, b] = [a, b].map(|sum| halves(sum as u64) + (sum >> 64) as u64);
    finish(a + b, rest, tail)
}

/// [`sum`] on an x86-64 processor with AVX2.
///
/// # Safety
/// Called from code that is not compiled for AVX2: the processor has it.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
pub fn avx2(bytes: &[u8]) -> u16 {
    use std::arch::x86_64::{
        _mm256_add_epi64, _mm256_extract_epi64, _mm256_setr_epi64x, _mm256_setzero_si256,
        _mm256_unpackhi_epi32, _mm256_unpacklo_epi32,
    };
    let (words, tail) = bytes.as_chunks::<8>();
    let (blocks, rest) = words.as_chunks::<8>();
    let zero = _mm256_setzero_si256();
    // 32-bit words widened to 64-bit lanes, where they cannot overflow.
    let (mut a, mut b, mut c, mut d) = (zero, zero, zero, zero);
    for [w0, w1, w2, w3, w4, w5, w6, w7] in blocks {
        let front = _mm256_setr_epi64x(word(w0), word(w1), word(w2), word(w3));
        let back = _mm256_setr_epi64x(word(w4), word(w5), word(w6), word(w7));
        a = _mm256_add_epi64(a, _mm256_unpacklo_epi32(front, zero));
        b = _mm256_add_epi64(b, _mm256_unpackhi_epi32(front, zero));
        c = _mm256_add_epi64(c, _mm256_unpacklo_epi32(back, zero));
        d = _mm256_add_epi64(d, _mm256_unpackhi_epi32(back, zero));
    }
    let lanes = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
    let low = halves(_mm256_extract_epi64::<0>(lanes) as u64)
        + halves(_mm256_extract_epi64::<1>(lanes) as u64);
    let high = halves(_mm256_extract_epi64::<2>(lanes) as u64)
        + halves(_mm256_extract_epi64::<3>(lanes) as u64);
    finish(low + high, rest, tail)
}

#[inline]
fn wide(bytes: &[u8; 8]) -> u128 {
    u128::from(u64::from_ne_bytes(*bytes))
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn word(bytes: &[u8; 8]) -> i64 {
    i64::from_ne_bytes(*bytes)
}

/// The sum of the two 32-bit halves.
#[inline]
const fn halves(word: u64) -> u64 {
    (word & 0xffff_ffff) + (word >> 32)
}

/// Adds fewer than eight words and fewer than eight bytes behind them to `total`.
#[inline]
fn finish(mut total: u64, words: &[[u8; 8]], tail: &[u8]) -> u16 {
    for word in words {
        total += halves(u64::from_ne_bytes(*word));
    }
    let (words, odd) = tail.as_chunks::<2>();
    for word in words {
        total += u64::from(u16::from_ne_bytes(*word));
    }
    if let [last] = odd {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    u16::from_be(fold(total))
}

/// 64 bits to 16 with end-around carry; zero only for zero.
pub(super) const fn fold(wide: u64) -> u16 {
    let wide = halves(wide);
    let wide = (wide & 0xffff) + (wide >> 16);
    let wide = (wide & 0xffff) + (wide >> 16);
    ((wide & 0xffff) + (wide >> 16)) as u16
}

/// Sums long runs, if something does so better than [`portable`].
static LONG: OnceLock<fn(&[u8]) -> u16> = OnceLock::new();

/// Bytes from which on it is worth the call.
const LEAST: usize = 128;
