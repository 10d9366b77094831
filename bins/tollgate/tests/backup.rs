//! `tollgate backup` and `tollgate restore` as users run them.

use std::process::Output;

use crate::site::{Site, assert_audit_clean, merchant_key};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_backup_beside_a_service_is_restored_once_the_service_has_ended() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let key = merchant_key(&site);
    let mut service = site.serve();
    let token = service.create_customer(&key, "1000").await;
    let call = service.forward(&site.chat_url(), &token, false);
    call.send().await.expect(200);
    let copied = site.json(&["backup", "copy.db"]);
    assert_eq!((&copied["requests"], &copied["differences"]), (&1.into(), &0.into()));
    let again = site.run(&["backup", "copy.db"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(said(&again).contains("copy.db is there already"), "{}", said(&again));
    call.send().await.expect(200);

    let served = site.run(&["restore", "copy.db"]);
    assert_eq!(served.status.code(), Some(1));
    assert!(said(&served).contains("a process serves from the database"), "{}", said(&served));
    service.signal("-TERM");
    assert_eq!(service.exit_code(), Some(0));

    // A page in the middle.
    let mut bytes = std::fs::read(site.path().join("copy.db")).unwrap();
    let middle = bytes.len() / 2 / 4_096 * 4_096;
    bytes[middle..middle + 4_096].fill(0xAA);
    std::fs::write(site.path().join("damaged.db"), bytes).unwrap();
    for (file, why) in [("damaged.db", "is damaged"), ("absent.db", "there is no database at")] {
        let refused = site.run(&["restore", file]);
        assert_eq!(refused.status.code(), Some(1), "{file}");
        assert!(said(&refused).contains(why), "{file}: {}", said(&refused));
        assert_eq!(assert_audit_clean(&site)["requests"], 2, "{file}");
    }

    let restored = site.json(&["restore", "copy.db"]);
    assert_eq!(assert_audit_clean(&site)["requests"], 1);
    let replaced = restored["replaced"].as_str().unwrap();
    let audited = site
        .command(&["audit", "--json"])
        .env("TOLLGATE_DATABASE_URL", format!("sqlite:{replaced}"))
        .output()
        .unwrap();
    let audited: serde_json::Value = serde_json::from_slice(&audited.stdout).unwrap();
    assert_eq!(audited["requests"], 2, "what was there is kept");
    let service = site.serve();
    service.forward(&site.chat_url(), &token, false).send().await.expect(200);
}
