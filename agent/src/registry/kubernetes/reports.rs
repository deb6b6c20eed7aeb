//! What was reported last, so that nothing is reported twice.

use crate::lease::Lease;
use crate::registry::remote::{Asked, Ended, Seat};
use crate::registry::{
    Announcement, Contact, RefusedRecord, RegistryPlace, RegistrySettings, Update,
};

/// The control loop's ear.
pub(super) struct Reports {
    seat: Seat,
    settings: Option<RegistrySettings>,
    leases: Option<Vec<Lease>>,
    refused_records: Vec<RefusedRecord>,
    contact: Option<Contact>,
    /// The refusal that no list has followed.
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

    /// Whether a refusal is in force.
    pub(super) fn is_refused(&self) -> bool {
        self.refusal.is_some()
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

    /// A complete list; it ends a refusal.
    pub(super) async fn leases(&mut self, leases: Vec<Lease>) -> Result<(), Ended> {
        let refused = self.refusal.take().is_some();
        if !refused && self.leases.as_ref() == Some(&leases) {
            return Ok(());
        }
        self.leases = Some(leases.clone());
        self.seat.report(Update::Leases(leases)).await
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
