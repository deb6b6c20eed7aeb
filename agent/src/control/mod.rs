//! The control side of the service: what is known, what is decided, and what is brought about.
//!
//! Theory of operation. One loop ([`event_loop`]) waits for the registry, the kernel, the API and the clock. It owns the
//! parts below and is the only one that knows them all; no part knows the loop. After each turn it posts problems on the
//! [board](crate::problems), and publishes a [`view`] from which every query is answered without it.
//!
//! | question | file |
//! |---|---|
//! | what happens when a lease changes? | `event_loop::registry_updates` |
//! | what is known and decided? | [`model`], from [`records`] and [`facts`] |
//! | what does this node publish of itself? | [`announcing`] |
//! | does the registry answer, and what was refused of it? | [`registry_state`] |
//! | which peers send past the overlay? | [`direct_routing`] |
//! | which peers have another MAC than their lease's? | `changed_macs` |
//! | which list of nodes is not adopted at once? | [`held_list`] |
//! | how do the workers get new tables? | [`tables`] |
//! | how is the kernel brought to the desired state? | [`kernel`] |
//! | where are the underlay sockets? | [`underlay`] |
//! | how many workers, on which cores? | [`workers`] |
//! | when is a pod gone, and who removes it? | [`pods`] |
//! | what do callers find in the run directory? | [`run_files`] |
//! | what survives a restart? | [`persistence`] |
//! | how does another program's service take its place? | `handing_over` |
//! | how is a changed file taken? | [`reload`] |
//! | what does the node itself show to be wrong? | [`diagnosis`] |
//! | how is a query answered? | [`view`] |

pub mod announcing;
mod changed_macs;
pub mod diagnosis;
pub mod direct_routing;
pub mod event_loop;
pub mod facts;
pub mod families;
mod handing_over;
pub mod held_list;
pub mod kernel;
pub mod model;
pub mod outcome;
pub mod persistence;
pub mod pods;
pub(crate) mod quick_faults;
pub mod records;
pub mod refused_sources;
pub mod registry_state;
pub mod reload;
pub mod repair_log;
mod replaced_flannel;
pub(crate) mod retry;
pub mod run_files;
pub mod tables;
pub mod underlay;
pub mod view;
pub mod workers;
