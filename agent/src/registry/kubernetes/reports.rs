//! What was reported last, so that nothing is reported twice.
//!
//! The control loop takes a list as the end of a refusal. So what is wrong beside a list is reported after it, and again
//! after each other list.

use crate::lease::Lease;
use crate::registry::remote::{Asked, Ended, Seat};
use crate::registry::{
    Announcement, Contact, RefusedRecord, RegistryPlace, RegistrySettings, Update,
};

/// Reports to the control loop.
pub(super) struct Reports {
    seat: Seat,
    settings: Option<RegistrySettings>,
    leases: Option<Vec<Lease>>,
    refused_records: Vec<RefusedRecord>,
    contact: Option<Contact>,
    /// The refusal in force: no list has followed it.
    refusal: Option<(RegistryPlace, String)>,
}

impl Reports {
    pub(super) fn to(seat: Seat) -> Reports {
        Reports {
            seat,
            settings: None,
            leases: None,
            refused_records: Vec::new(),
            contact: None,
            refusal: None,
        }
    }

    /// Whether any list was reported.
    pub(super) fn has_listed(&self) -> bool {
        self.leases.is_some()
    }

    /// Waits for what the control loop asks. Dropping the future loses nothing.
    pub(super) async fn asked(&mut self) -> Result<Asked, Ended> {
        self.seat.asked().await
    }

    /// The latest announcement.
    pub(super) async fn announcement(&mut self) -> Result<Announcement, Ended> {
        self.seat.announcement().await
    }

    pub(super) async fn settings(&mut self, settings: RegistrySettings) -> Result<(), Ended> {
        if self.settings.as_ref() == Some(&settings) {
            return Ok(());
        }
        self.settings = Some(settings.clone());
        self.seat.report(Update::Settings(settings)).await
    }

    /// A complete list, and what is wrong although the list is in force. Where nothing is, it ends a refusal.
    pub(super) async fn leases(
        &mut self,
        leases: Vec<Lease>,
        fault: Option<(RegistryPlace, String)>,
    ) -> Result<(), Ended> {
        let ends_refusal = fault.is_none() && self.refusal.is_some();
        if ends_refusal || self.leases.as_ref() != Some(&leases) {
            self.refusal = None;
            self.leases = Some(leases.clone());
            self.seat.report(Update::Leases(leases)).await?;
        }
        match fault {
            Some((place, reason)) => self.refuse(place, reason).await,
            None => Ok(()),
        }
    }

    pub(super) async fn refused_records(
        &mut self,
        records: Vec<RefusedRecord>,
    ) -> Result<(), Ended> {
        if self.refused_records == records {
            return Ok(());
        }
        self.refused_records.clone_from(&records);
        self.seat.report(Update::RefusedRecords(records)).await
    }

    pub(super) async fn contact(&mut self, contact: Contact) -> Result<(), Ended> {
        if self.contact.as_ref() == Some(&contact) {
            return Ok(());
        }
        self.contact = Some(contact.clone());
        self.seat.report(Update::Contact(contact)).await
    }

    pub(super) async fn refuse(
        &mut self,
        place: RegistryPlace,
        reason: String,
    ) -> Result<(), Ended> {
        let refusal = Some((place.clone(), reason.clone()));
        if self.refusal == refusal {
            return Ok(());
        }
        self.refusal = refusal;
        self.seat.report(Update::Refused { place, reason }).await
    }
}
