//! A device of plain memory: what a pod sends is pushed in, what is delivered is taken out.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::RawFd;

use super::{Device, Offload, Read};
use crate::limits::FRAME;

/// Two queues of IP packets.
#[derive(Default)]
pub struct Memory {
    /// Packets on their way to the worker, oldest first.
    pub to_worker: VecDeque<Vec<u8>>,
    /// Packets that the worker wrote, oldest first.
    pub delivered: VecDeque<Vec<u8>>,
    /// Refuse every write, as a device that is down does.
    pub down: bool,
}

impl Device for Memory {
    fn read(&mut self, frame: &mut [u8; FRAME]) -> io::Result<Read> {
        let packet = self
            .to_worker
            .pop_front()
            .ok_or(io::ErrorKind::WouldBlock)?;
        let length = packet.len().min(FRAME);
        for (place, byte) in frame.iter_mut().zip(&packet) {
            *place = *byte;
        }
        Ok(Read::whole(length))
    }

    fn write(&mut self, _offload: Offload, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if self.down {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.delivered
            .push_back(parts.iter().flat_map(|part| part.iter().copied()).collect());
        Ok(())
    }

    fn descriptor(&self) -> Option<RawFd> {
        None
    }
}
