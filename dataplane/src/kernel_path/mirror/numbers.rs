//! Numbers for the entries of an array.

use std::collections::VecDeque;

/// Numbers not in use. One that was in use is given again as late as possible: a program that runs may still hold what
/// it read.
pub(super) struct Numbers {
    /// From here on none was ever in use.
    unused: u32,
    end: u32,
    freed: VecDeque<u32>,
}

/// A number, and whether it was in use before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) value: u32,
    pub(super) reused: bool,
}

impl Numbers {
    /// Those from `first` up to, and without, `end`, none ever in use.
    pub(super) fn new(first: u32, end: u32) -> Numbers {
        Numbers {
            unused: first,
            end,
            freed: VecDeque::new(),
        }
    }

    /// Those of an array that an earlier service wrote, but for those `in_use`.
    pub(super) fn adopted(first: u32, end: u32, in_use: impl Fn(u32) -> bool) -> Numbers {
        Numbers {
            unused: end,
            end,
            freed: (first..end).filter(|number| !in_use(*number)).collect(),
        }
    }

    pub(super) fn take(&mut self) -> Option<Number> {
        if self.unused < self.end {
            self.unused += 1;
            return Some(Number {
                value: self.unused - 1,
                reused: false,
            });
        }
        let value = self.freed.pop_front()?;
        Some(Number {
            value,
            reused: true,
        })
    }

    pub(super) fn free(&mut self, number: u32) {
        self.freed.push_back(number);
    }
}
