//! The flow thread as the control loop holds it: started, given facts, and ended.

use std::sync::Arc;

use dataplane::kernel_path::{Event, FlowTable};
use tokio::sync::{mpsc, watch};

use super::{FlowCounts, FlowError, FlowFacts, FlowService};

/// The flow thread, while there is one.
#[derive(Default)]
pub(crate) struct Flows(Option<Running>);

struct Running {
    service: FlowService,
    facts: watch::Sender<Arc<FlowFacts>>,
    others: mpsc::Receiver<Event>,
}

impl Flows {
    /// Hands facts to the thread; starts it where none runs, on the table that `open` gives. Facts must be handed before the
    /// programs act by tables made of the same ones, or right after.
    ///
    /// # Errors
    /// [`FlowError`]; no thread runs then.
    pub(crate) fn follow(
        &mut self,
        open: impl FnOnce() -> Result<FlowTable, FlowError>,
        facts: FlowFacts,
    ) -> Result<(), FlowError> {
        if self.is_running() {
            self.inform(facts);
            return Ok(());
        }
        self.0 = None;
        let (sender, receiver) = watch::channel(Arc::new(facts));
        let (others_sender, others) = mpsc::channel(OTHERS);
        self.0 = Some(Running {
            service: FlowService::start(open()?, receiver, others_sender)?,
            facts: sender,
            others,
        });
        Ok(())
    }

    /// Hands facts to the thread, where one runs.
    pub(crate) fn inform(&self, facts: FlowFacts) {
        if let Some(running) = &self.0 {
            running.facts.send_replace(Arc::new(facts));
        }
    }

    /// Has the thread look at once whether programs follow flows: they do from now on.
    pub(crate) fn wake(&self) {
        if let Some(running) = &self.0 {
            running.service.wake();
        }
    }

    /// Whether there is a thread that judges and watches.
    pub(crate) fn is_running(&self) -> bool {
        let running = self.0.as_ref();
        running.is_some_and(|running| running.service.is_running())
    }

    /// Ends the thread. Takes as long as a few judgements. Flows that the programs follow go on, unless these are switched off.
    pub(crate) fn stop(&mut self) {
        self.0 = None;
    }

    /// The next event that is no proposal.
    pub(crate) fn next_other(&mut self) -> Option<Event> {
        self.0.as_mut()?.others.try_recv().ok()
    }

    /// What the thread counts.
    pub(crate) fn counts(&self) -> Option<Arc<FlowCounts>> {
        self.0.as_ref().map(|running| running.service.counts())
    }
}

impl std::fmt::Debug for Flows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Flows").field(&self.counts()).finish()
    }
}

/// Events that are no proposals, kept until the control loop reads them. Reports of a path come again.
const OTHERS: usize = 64;
