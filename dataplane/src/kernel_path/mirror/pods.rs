//! The table `pods`: pods of this node.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use super::generations::Generations;
use super::numbers::Numbers;
use crate::kernel_path::layout::{NO_NAMESPACE, Pod};
use crate::kernel_path::tables::Tables;
use crate::kernel_path::{Facts, KernelPathError, PodEnd, PodFacts, PodTraffic, Traffic};
use crate::spec::LocalSpec;

/// The pods as the kernel has them.
pub(super) struct Pods {
    written: HashMap<Ipv4Addr, Pod>,
    numbers: Numbers,
}

/// What the pods are to become.
pub(super) type WantedPods = HashMap<Ipv4Addr, PodFacts>;

/// The pods of `facts` that the spec has too: the facts may be older or newer than it.
pub(super) fn wanted(spec: &LocalSpec, facts: &Facts) -> WantedPods {
    let attached: HashSet<&IpAddr> = spec.attachments.iter().collect();
    let own = |address: &IpAddr| spec.subnets.iter().any(|subnet| subnet.contains(address));
    let pods = facts.pods.iter().filter(|pod| {
        let address = IpAddr::V4(pod.address);
        attached.contains(&address) && own(&address)
    });
    pods.map(|pod| (pod.address, *pod)).collect()
}

impl Pods {
    /// What `tables` hold. `fresh`: no service wrote to them yet.
    pub(super) fn read(tables: &impl Tables, fresh: bool) -> Result<Pods, KernelPathError> {
        let written: HashMap<Ipv4Addr, Pod> = tables.pods()?.into_iter().collect();
        let numbers = if fresh {
            Numbers::new(0, tables.max_pods())
        } else {
            let used: HashSet<u32> = written.values().map(|pod| pod.number).collect();
            Numbers::adopted(0, tables.max_pods(), |number| used.contains(&number))
        };
        Ok(Pods { written, numbers })
    }

    /// Removes what is not wanted, or another now.
    pub(super) fn restrict(
        &mut self,
        tables: &mut impl Tables,
        wanted: &WantedPods,
    ) -> Result<(), KernelPathError> {
        let stays = |(address, pod): &(&Ipv4Addr, &Pod)| {
            wanted.get(address).is_some_and(|wanted| pod.is_of(wanted))
        };
        let gone = self.written.iter().filter(|entry| !stays(entry));
        let gone: Vec<(Ipv4Addr, u32)> =
            gone.map(|(address, pod)| (*address, pod.number)).collect();
        for (address, number) in gone {
            tables.remove_pod(address)?;
            self.written.remove(&address);
            self.numbers.free(number);
        }
        Ok(())
    }

    /// Adds what is wanted.
    pub(super) fn extend(
        &mut self,
        tables: &mut impl Tables,
        wanted: &WantedPods,
        generations: &mut Generations,
    ) -> Result<(), KernelPathError> {
        for (address, facts) in wanted {
            if self.written.contains_key(address) {
                continue;
            }
            let number = match (self.numbers.take(), facts.end) {
                (Some(number), _) => number,
                // It would only be counted.
                (None, None) => continue,
                (None, Some(_)) => return Err(KernelPathError::Full { table: "pods" }),
            };
            if number.reused {
                tables.clear_pod_counts(number.value)?;
            }
            let pod = Pod {
                generation: generations.next(tables)?,
                number: number.value,
                ..Pod::at(facts.end)
            };
            tables.set_pod(*address, &pod)?;
            self.written.insert(*address, pod);
        }
        Ok(())
    }

    /// Gives the pod at `address` another generation.
    pub(super) fn revoke(
        &mut self,
        tables: &mut impl Tables,
        generations: &mut Generations,
        address: Ipv4Addr,
    ) -> Result<bool, KernelPathError> {
        let Some(pod) = self.written.get_mut(&address) else {
            return Ok(false);
        };
        let next = Pod {
            generation: generations.next(tables)?,
            ..*pod
        };
        tables.set_pod(address, &next)?;
        *pod = next;
        Ok(true)
    }

    pub(super) fn count(&self) -> usize {
        self.written.len()
    }

    /// What was counted for each, in the order of their addresses.
    pub(super) fn traffic(&self, tables: &impl Tables) -> Result<Vec<PodTraffic>, KernelPathError> {
        let mut pods: Vec<(&Ipv4Addr, &Pod)> = self.written.iter().collect();
        pods.sort_unstable_by_key(|(address, _)| **address);
        let traffic = pods.into_iter().map(|(address, pod)| {
            Ok(PodTraffic {
                address: *address,
                traffic: Traffic::from(tables.pod_counts(pod.number)?),
            })
        });
        traffic.collect()
    }
}

impl Pod {
    /// An entry of no generation and number.
    fn at(end: Option<PodEnd>) -> Pod {
        let namespace = end.and_then(|end| end.namespace).unwrap_or(NO_NAMESPACE);
        Pod {
            ifindex: end.map_or(0, |end| end.ifindex.get()),
            namespace,
            pod_mac: end.map_or([0; 6], |end| end.pod_mac.0),
            host_mac: end.map_or([0; 6], |end| end.host_mac.0),
            ..Pod::default()
        }
    }

    fn is_of(&self, facts: &PodFacts) -> bool {
        let wanted = Pod {
            generation: self.generation,
            number: self.number,
            ..Pod::at(facts.end)
        };
        *self == wanted
    }
}
