//! What is written at a scrape: family after family, in the OpenMetrics text format.

use std::fmt;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, MetricEncoder,
    NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::metric::{Kind, Metric};
use crate::peer_health::histogram::Histogram;

/// The page that is being written.
pub(super) struct Page<'a>(DescriptorEncoder<'a>);

impl<'a> Page<'a> {
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Page<'a> {
        Page(encoder)
    }

    /// Writes a metric with all of its samples. No two of them have the same labels.
    pub(super) fn family<L, V>(
        &mut self,
        metric: &Metric,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result
    where
        L: EncodeLabelSet,
        V: EncodeCounterValue + EncodeGaugeValue,
    {
        self.describe(metric, |family| {
            for (labels, value) in samples {
                match metric.kind {
                    Kind::Info => family.encode_info(&labels)?,
                    _ => sample(&mut family.encode_family(&labels)?, metric.kind, &value)?,
                }
            }
            Ok(())
        })
    }

    /// Writes a metric that has one sample, without labels.
    pub(super) fn one<V>(&mut self, metric: &Metric, value: V) -> fmt::Result
    where
        V: EncodeCounterValue + EncodeGaugeValue,
    {
        self.known(metric, Some(value))
    }

    /// The same, where the value may not be known: then there is no sample, and nothing that could be taken for a 0.
    pub(super) fn known<V>(&mut self, metric: &Metric, value: Option<V>) -> fmt::Result
    where
        V: EncodeCounterValue + EncodeGaugeValue,
    {
        self.describe(metric, |family| {
            value.map_or(Ok(()), |value| sample(family, metric.kind, &value))
        })
    }

    /// Writes a metric of that kind. No two histograms have the same labels.
    pub(super) fn histograms<L>(
        &mut self,
        metric: &Metric,
        histograms: impl IntoIterator<Item = (L, Histogram)>,
    ) -> fmt::Result
    where
        L: EncodeLabelSet,
    {
        self.describe(metric, |family| {
            for (labels, histogram) in histograms {
                let buckets: Vec<(f64, u64)> = histogram.buckets().collect();
                let (sum, count) = (histogram.sum().as_secs_f64(), histogram.count());
                let mut encoder = family.encode_family(&labels)?;
                encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
            }
            Ok(())
        })
    }

    /// Writes what stands above the samples, and has `write` write them.
    fn describe(
        &mut self,
        metric: &Metric,
        write: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let (name, unit) = metric.family();
        let unit = unit.map(|unit| Unit::Other(unit.to_owned()));
        let kind = match metric.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
            Kind::Info => MetricType::Info,
        };
        write(&mut (self.0).encode_descriptor(name, metric.help, unit.as_ref(), kind)?)
    }
}

fn sample<V>(encoder: &mut MetricEncoder<'_>, kind: Kind, value: &V) -> fmt::Result
where
    V: EncodeCounterValue + EncodeGaugeValue,
{
    match kind {
        Kind::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(value, None),
        Kind::Gauge | Kind::Histogram | Kind::Info => encoder.encode_gauge(value),
    }
}
