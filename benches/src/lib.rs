//! Criterion benches of Tartan; see `benches/`.
