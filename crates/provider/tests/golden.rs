//! Every recorded answer, at every cut and through every compression: the same bytes pass, and the
//! same usage is read.

use bytes::Bytes;
use proptest::prelude::*;
use tollgate_domain::UsageSource;
use tollgate_usage::{ResponseEnd, UsageReading};

use crate::common::{GoldenCase, cases, compressions, feed, replay};

/// Checks that a replay at each cut gives the reading, the bytes and the held bytes of the whole.
fn same_at_every_cut(case: &GoldenCase) {
    let whole = replay(case, &[]);
    case.check(&whole.reading);
    assert_eq!(whole.bytes(), case.body, "{}", case.name);
    for cut in cuts(case) {
        let cut = replay(case, &[cut]);
        assert_eq!(cut.reading, whole.reading, "{}", case.name);
        assert_eq!(cut.bytes(), case.body, "{}", case.name);
        assert_eq!(cut.held, whole.held, "{}", case.name);
    }
    let bytes: Vec<usize> = (0..case.body.len()).collect();
    let single = replay(case, &bytes);
    assert_eq!((single.bytes(), &single.reading), (case.body.clone(), &whole.reading));
}

/// Every byte boundary; of a large body, about 4,096 of them.
fn cuts(case: &GoldenCase) -> impl Iterator<Item = usize> + use<> {
    const MOST: usize = 4096;
    (0..=case.body.len()).step_by(case.body.len().div_ceil(MOST).max(1))
}

#[test]
fn every_answer_reads_the_same_at_every_cut() {
    let cases = cases();
    assert!(cases.len() >= 190, "the corpus is missing: {}", cases.len());
    cases.iter().for_each(same_at_every_cut);
}

#[test]
fn a_streamed_answer_costs_what_the_same_answer_costs_whole() {
    let cases = cases();
    let mut pairs = 0;
    for streamed in &cases {
        let stem = ["_stream", "_array"].iter().find_map(|end| streamed.name.strip_suffix(end));
        let Some(whole) = cases.iter().find(|case| Some(case.name.as_str()) == stem) else {
            continue;
        };
        let (one, other) = (replay(whole, &[]).reading, replay(streamed, &[]).reading);
        let name = &streamed.name;
        assert_eq!((one.usage, one.source), (other.usage, other.source), "{name}");
        assert_eq!((one.parts, one.tiers, one.model), (other.parts, other.tiers, other.model));
        pairs += 1;
    }
    assert!(pairs >= 39, "{pairs}");
}

#[test]
fn the_last_event_waits_for_the_settlement() {
    for case in cases() {
        let Some(held) = &case.held else { continue };
        let replayed = replay(&case, &[]);
        assert_eq!(String::from_utf8_lossy(&replayed.held), held.as_str(), "{}", case.name);
    }
}

#[test]
fn every_answer_reads_the_same_through_every_compression() {
    for case in cases() {
        for packed in compressions(&case) {
            let name = format!("{} in {:?}", packed.name, packed.encoding);
            let whole = replay(&packed, &[]);
            case.check(&whole.reading);
            assert_eq!(whole.bytes(), packed.body, "{name}");
            let step = packed.body.len().div_ceil(40).max(1);
            for cut in (0..=packed.body.len()).step_by(step) {
                let cut = replay(&packed, &[cut]);
                assert_eq!(cut.reading, whole.reading, "{name}");
                assert_eq!(cut.bytes(), packed.body, "{name}");
            }
            let bytes: Vec<usize> = (0..packed.body.len()).collect();
            let single = replay(&packed, &bytes);
            assert_eq!((single.bytes(), single.reading), (packed.body, whole.reading), "{name}");
        }
    }
}

#[test]
fn an_answer_cut_at_any_byte_is_read_honestly() {
    for case in cases().iter().filter(|case| case.status == 200) {
        for cut in cuts(case).filter(|cut| *cut < case.body.len()) {
            for how in [ResponseEnd::Broken, ResponseEnd::Left] {
                let mut meter = case.meter(false);
                let mut out = feed(&mut meter, [Bytes::copy_from_slice(&case.body[..cut])]);
                let reading = meter.finish(how);
                out.add_rest(&reading);
                assert_eq!(out.bytes(), &case.body[..cut], "{} cut at {cut}", case.name);
                honest(case, &reading);
            }
        }
    }
}

/// Checks that a cut answer counts as reported only with the figures of the whole one.
fn honest(case: &GoldenCase, reading: &UsageReading) {
    match reading.source {
        UsageSource::Reported => {
            // The calls of tools are reported in the same place as the figures.
            case.check_usage(reading);
        }
        UsageSource::Partial => assert!(reading.usage.quantities.request == 1),
        UsageSource::Estimated => assert!(reading.complete, "{}: {reading:?}", case.name),
        UsageSource::None => unreachable!("{}: {reading:?}", case.name),
    }
}

#[test]
fn the_extra_event_is_removed_and_nothing_else() {
    for case in cases().iter().filter(|case| case.is_stream && case.name.starts_with("openai_chat"))
    {
        let expected = case.without_usage_event();
        let whole = case.strip(&[]);
        assert_eq!(whole.bytes(), expected, "{}", case.name);
        case.check(&whole.reading);
        for cut in 0..=case.body.len() {
            let cut = case.strip(&[cut]);
            assert_eq!(cut.bytes(), expected, "{}", case.name);
            assert_eq!(cut.reading, whole.reading, "{}", case.name);
        }
        let bytes: Vec<usize> = (0..case.body.len()).collect();
        assert_eq!(case.strip(&bytes).bytes(), expected, "{}", case.name);
    }
}

#[test]
fn what_was_compressed_against_our_asking_passes_unchanged() {
    for case in cases().iter().filter(|case| case.is_stream) {
        for packed in compressions(case) {
            let stripped = packed.strip(&[]);
            assert_eq!(stripped.bytes(), packed.body);
            case.check(&stripped.reading);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_partition_gives_the_same(
        pick in any::<prop::sample::Index>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        strip in any::<bool>(),
    ) {
        let cases = cases();
        let case = &cases[pick.index(cases.len())];
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(case.body.len() + 1)).collect();
        cuts.sort_unstable();
        let replay = |cuts: &[usize]| if strip { case.strip(cuts) } else { replay(case, cuts) };
        let (whole, parts) = (replay(&[]), replay(&cuts));
        prop_assert_eq!(parts.bytes(), whole.bytes());
        prop_assert_eq!(parts.reading, whole.reading);
    }

    #[test]
    fn no_bytes_whatever_make_it_panic_or_lose_any(
        pick in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
        encoding in prop::sample::select(vec!["", "gzip", "br", "zstd", "deflate", "gzip, br"]),
    ) {
        let cases = cases();
        let mut case = cases[pick.index(cases.len())].clone();
        for (at, byte) in changes {
            let at = at.index(case.body.len());
            case.body[at] = byte;
        }
        case.encoding = encoding.to_owned();
        let whole = replay(&case, &[case.body.len() / 2]);
        prop_assert_eq!(whole.bytes(), case.body);
    }
}
