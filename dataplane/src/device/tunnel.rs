//! The tunnel device of a node: fast where the kernel offers it, plain elsewhere.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use super::plain::Plain;
use super::tun::Tun;
use encap::Mac;

use super::{Device, Offload, Offloads, Read};
use crate::limits::FRAME;
use crate::now::Now;

/// One worker's share of the tunnel device.
pub enum Tunnel {
    /// The fast device.
    Fast(Tun),
    /// The plain device.
    Plain(Plain),
}

impl AsFd for Tunnel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Tunnel::Fast(device) => device.as_fd(),
            Tunnel::Plain(device) => device.as_fd(),
        }
    }
}

impl Device for Tunnel {
    fn read(&mut self, frame: &mut [u8; FRAME]) -> io::Result<Read> {
        match self {
            Tunnel::Fast(device) => device.read(frame),
            Tunnel::Plain(device) => device.read(frame),
        }
    }

    fn write(&mut self, offload: Offload, parts: &[IoSlice<'_>]) -> io::Result<()> {
        match self {
            Tunnel::Fast(device) => device.write(offload, parts),
            Tunnel::Plain(device) => device.write(offload, parts),
        }
    }

    fn mac(&self) -> Option<Mac> {
        match self {
            Tunnel::Fast(device) => device.mac(),
            Tunnel::Plain(device) => device.mac(),
        }
    }

    fn write_arp(&mut self, packet: &[u8]) -> io::Result<()> {
        match self {
            Tunnel::Fast(device) => device.write_arp(packet),
            Tunnel::Plain(device) => device.write_arp(packet),
        }
    }

    fn offloads(&mut self, now: Now) -> Offloads {
        match self {
            Tunnel::Fast(device) => device.offloads(now),
            Tunnel::Plain(device) => device.offloads(now),
        }
    }

    fn offload_failed(&mut self, refused: Offload, now: Now) {
        match self {
            Tunnel::Fast(device) => device.offload_failed(refused, now),
            Tunnel::Plain(device) => device.offload_failed(refused, now),
        }
    }

    fn given_up(&self) -> u64 {
        match self {
            Tunnel::Fast(device) => device.given_up(),
            Tunnel::Plain(device) => device.given_up(),
        }
    }

    fn descriptor(&self) -> Option<RawFd> {
        match self {
            Tunnel::Fast(device) => device.descriptor(),
            Tunnel::Plain(device) => device.descriptor(),
        }
    }
}
