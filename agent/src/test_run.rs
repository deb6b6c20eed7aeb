//! A runtime for one unit test.

/// Runs `body` to its end on this thread.
pub(crate) fn run<F: Future>(body: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(body)
}
