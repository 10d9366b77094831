//! The text forms of instants and ids.

use tollgate_domain::{MerchantId, Timestamp, WalletId};

#[test]
fn an_instant_is_written_to_the_microsecond_and_read_back() {
    for (micros, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (900_000, "1970-01-01T00:00:00.9Z"),
        (900_001, "1970-01-01T00:00:00.900001Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (1_795_335_803_330_086, "2026-11-22T08:23:23.330086Z"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
    ] {
        let at = Timestamp::from_unix_micros(micros);
        assert_eq!(at.to_string(), text);
        assert_eq!(serde_json::to_string(&at).unwrap(), format!("\"{text}\""));
        assert_eq!(text.parse(), Ok(at));
    }
}

#[test]
fn an_id_has_one_spelling() {
    let text = "mch_01NFTWKERCGAPNQTV22REZ7MYP";
    let id: MerchantId = text.parse().unwrap();
    assert_eq!(id.to_string(), text);
    assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{text}\""));
    assert!(text.to_lowercase().parse::<MerchantId>().is_err());
    assert!("mch_01NFTWKERCGAPNQTV22REZ7MYPX".parse::<MerchantId>().is_err());
    // Other readers take an I for a 1.
    assert!("mch_0INFTWKERCGAPNQTV22REZ7MYP".parse::<MerchantId>().is_err());
    assert!(text.parse::<WalletId>().is_err());
}
