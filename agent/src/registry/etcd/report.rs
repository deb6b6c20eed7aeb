//! What was reported to the control loop, so that nothing is reported twice.
//!
//! A refusal is followed by what is in force again once it is over, even where that is what it was before: the control
//! loop takes it as the end of the refusal.

use super::super::announcement::RegistrySettings;
use super::super::place::RegistryPlace;
use super::super::refused_record::RefusedRecord;
use super::super::remote::{Ended, Seat};
use super::super::{Contact, Update};
use crate::lease::Lease;

/// What was reported last.
#[derive(Debug, Default)]
pub(super) struct Reports {
    settings: Option<RegistrySettings>,
    leases: Option<Vec<Lease>>,
    refused_records: Vec<RefusedRecord>,
    contact: Option<Contact>,
    /// The reason of the last attempt that failed.
    failed: Option<String>,
    refusal: Option<(RegistryPlace, String)>,
}

impl Reports {
    pub(super) async fn settings(
        &mut self,
        seat: &Seat,
        settings: RegistrySettings,
    ) -> Result<(), Ended> {
        if self.settings.as_ref() == Some(&settings) {
            return Ok(());
        }
        self.settings = Some(settings.clone());
        seat.report(Update::Settings(settings)).await
    }

    /// The list, and what is wrong beside it. The list ends a refusal for the control loop, so the one that stands follows.
    pub(super) async fn leases(
        &mut self,
        seat: &Seat,
        leases: Vec<Lease>,
        trouble: Option<(RegistryPlace, String)>,
    ) -> Result<(), Ended> {
        let is_over = self.refusal.is_some() && trouble.is_none();
        if is_over || self.leases.as_ref() != Some(&leases) {
            self.refusal = None;
            self.leases = Some(leases.clone());
            seat.report(Update::Leases(leases)).await?;
        }
        match trouble {
            Some(trouble) => self.refuse(seat, trouble).await,
            None => Ok(()),
        }
    }

    pub(super) async fn refused_records(
        &mut self,
        seat: &Seat,
        records: Vec<RefusedRecord>,
    ) -> Result<(), Ended> {
        if self.refused_records == records {
            return Ok(());
        }
        self.refused_records.clone_from(&records);
        seat.report(Update::RefusedRecords(records)).await
    }

    /// Another reason takes the place of that at the beginning of a loss when two attempts have failed by it in a row: a
    /// connection that broke may be followed by a password that is wrong. Of several servers that fail each in its way,
    /// the reason does not alternate.
    pub(super) async fn contact(&mut self, seat: &Seat, contact: Contact) -> Result<(), Ended> {
        let before = match &contact {
            Contact::Lost { reason } => self.failed.replace(reason.clone()),
            Contact::InTouch => self.failed.take(),
        };
        let repeats = match (&self.contact, &contact) {
            (Some(Contact::InTouch), Contact::InTouch) => true,
            (Some(Contact::Lost { reason: said }), Contact::Lost { reason }) => {
                said == reason || before.as_ref() != Some(reason)
            }
            _ => false,
        };
        if repeats {
            return Ok(());
        }
        self.contact = Some(contact.clone());
        seat.report(Update::Contact(contact)).await
    }

    /// `is_config`: the configuration is refused, not only the leases.
    pub(super) async fn refused(
        &mut self,
        seat: &Seat,
        refusal: (RegistryPlace, String),
        is_config: bool,
    ) -> Result<(), Ended> {
        self.leases = None;
        if is_config {
            self.settings = None;
        }
        self.refuse(seat, refusal).await
    }

    async fn refuse(&mut self, seat: &Seat, refusal: (RegistryPlace, String)) -> Result<(), Ended> {
        if self.refusal.as_ref() == Some(&refusal) {
            return Ok(());
        }
        self.refusal = Some(refusal.clone());
        let (place, reason) = refusal;
        seat.report(Update::Refused { place, reason }).await
    }
}
