//! The one entry of `settings`, which the control thread and the thread of the flows both change.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use aya::maps::{Array, MapData};

use super::KernelPathError;
use super::layout::{MARK_BITS, Settings};
use super::object::SETTINGS;

/// The settings as the kernel has them. The entry is written as a whole, so a writer that changes a part of it must
/// know the rest: hence the lock, which no packet waits for.
pub(super) struct SettingsTable(Mutex<Entry>);

struct Entry {
    table: Array<MapData, Settings>,
    written: Settings,
}

impl SettingsTable {
    /// The settings that `table` holds. One without mark is new, and gets a mark and the first epoch.
    pub(super) fn read(table: Array<MapData, Settings>) -> Result<SettingsTable, KernelPathError> {
        let failed = |error| KernelPathError::table("read", SETTINGS, error);
        let written = table.get(&0, 0).map_err(failed)?;
        let settings = SettingsTable(Mutex::new(Entry { table, written }));
        settings.change(|settings| {
            if settings.mark == 0 {
                let random = RandomState::new().hash_one(0) as u32;
                settings.mark = (random & MARK_BITS).max(1);
                settings.end_epochs();
            }
        })?;
        Ok(settings)
    }

    /// Reads the settings as the kernel has them, where another process may have written them.
    pub(super) fn reread(&self) -> Result<(), KernelPathError> {
        let mut entry = self.entry();
        let written = entry.table.get(&0, 0);
        entry.written = written.map_err(|error| KernelPathError::table("read", SETTINGS, error))?;
        Ok(())
    }

    /// The present settings, as this process wrote or read them last.
    pub(super) fn get(&self) -> Settings {
        self.entry().written
    }

    /// Changes the settings; writes only if they differ then. Returns whether they did.
    pub(super) fn change(
        &self,
        change: impl FnOnce(&mut Settings),
    ) -> Result<bool, KernelPathError> {
        let mut entry = self.entry();
        let mut wanted = entry.written;
        change(&mut wanted);
        if wanted == entry.written {
            return Ok(false);
        }
        let written = entry.table.set(0, wanted, 0);
        written.map_err(|error| KernelPathError::table("write", SETTINGS, error))?;
        entry.written = wanted;
        Ok(true)
    }

    /// Ends every epoch and returns the new one.
    pub(super) fn next_epoch(&self) -> Result<u32, KernelPathError> {
        let mut epoch = 0;
        self.change(|settings| epoch = settings.end_epochs())?;
        Ok(epoch)
    }

    /// Begins an epoch beside those before it.
    pub(super) fn add_epoch(&self) -> Result<(), KernelPathError> {
        let added = self.change(|settings| settings.epoch = settings.epoch.wrapping_add(1));
        added.map(drop)
    }

    /// Ends every epoch before the present one. Returns whether one was left.
    pub(super) fn end_earlier_epochs(&self) -> Result<bool, KernelPathError> {
        self.change(|settings| settings.oldest_epoch = settings.epoch)
    }

    fn entry(&self) -> std::sync::MutexGuard<'_, Entry> {
        // What is noted is what was written, whatever happened to another thread.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Settings {
    /// Ends every epoch, and returns the one that begins.
    pub(super) fn end_epochs(&mut self) -> u32 {
        self.epoch = self.epoch.wrapping_add(1);
        self.oldest_epoch = self.epoch;
        self.epoch
    }

    /// Whether flows that were judged in `epoch` are followed.
    pub(super) fn follows(&self, epoch: u32) -> bool {
        self.epoch.wrapping_sub(epoch) <= self.epoch.wrapping_sub(self.oldest_epoch)
    }
}
