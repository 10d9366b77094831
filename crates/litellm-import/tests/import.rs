//! Rows of LiteLLM become budgets and spend keys with the same limits, and everything else a note.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use serde_json::{Value, json};
use tollgate_domain::{
    BudgetEnforcement, BudgetStatus, Cycle, RateLimit, SpendKeyStatus, SpendLimit,
};
use tollgate_litellm_import::{BudgetSource, Import, ImportedKey, TABLES, Tables, import};
use tollgate_pricing::Amount;

const HASH: &str = "88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b";

/// Imports tables, in the order of [`TABLES`].
fn imported(tables: [Value; 5]) -> Import {
    let mut all = Tables::default();
    for (name, rows) in TABLES.iter().zip(tables) {
        all.add(name, &rows.to_string()).unwrap();
    }
    import(&all)
}

/// A key with these columns and a token, in no team.
fn key(columns: Value) -> (ImportedKey, Vec<String>) {
    let mut row =
        json!({"token": HASH, "key_name": "sk-...abcd", "key_alias": "Agent", "spend": 0});
    row.as_object_mut().unwrap().extend(columns.as_object().unwrap().clone());
    let mut import = imported([json!([row]), json!([]), json!([]), json!([]), json!([])]);
    (import.keys.remove(0), import.notes)
}

fn usd(text: &str) -> Amount {
    text.parse().unwrap()
}

fn limit(amount: &str, cycle: Cycle) -> Option<SpendLimit> {
    Some(SpendLimit { amount: usd(amount), cycle })
}

#[test]
fn organizations_teams_and_users_become_budgets_with_their_limits() {
    let organizations = json!([
        {"organization_id": "o1", "organization_alias": "Acme", "budget_id": "b1", "spend": 12.5,
         "models": []},
    ]);
    let budgets = json!([{"budget_id": "b1", "max_budget": 1000.0, "budget_duration": "30d"}]);
    let teams = json!([
        {"team_id": "t1", "team_alias": "Research", "organization_id": "o1", "max_budget": 50.25,
         "budget_duration": "7d", "spend": 0.30000000000000004, "blocked": false},
        {"team_id": "t2", "team_alias": null, "organization_id": null, "blocked": true},
        {"team_id": "litellm-dashboard", "team_alias": "UI"},
    ]);
    let users = json!([
        {"user_id": "u1", "user_alias": null, "user_email": "ann@example.com", "max_budget": 0.1,
         "budget_duration": "1d", "spend": 0.3},
    ]);
    let import = imported([json!([]), teams, organizations, users, budgets]);
    assert_eq!(import.notes, <Vec<String>>::new());
    let [acme, research, blocked, ann] = &import.budgets[..] else { panic!("{import:?}") };
    assert_eq!((acme.name.as_str(), &acme.parent), ("Acme", &None));
    assert_eq!(acme.rules.spend_limit, limit("1000", Cycle::Monthly));
    assert_eq!(acme.spent, usd("12.5"));
    assert_eq!(research.name, "Research");
    assert_eq!(research.parent, Some(BudgetSource::Organization("o1".to_owned())));
    assert_eq!(research.rules.spend_limit, limit("50.25", Cycle::Weekly));
    assert_eq!(research.rules.enforcement, BudgetEnforcement::Bounded);
    assert_eq!(research.spent, usd("0.3"));
    assert_eq!((blocked.name.as_str(), blocked.rules.status), ("t2", BudgetStatus::Paused));
    assert_eq!(blocked.rules.spend_limit, None);
    assert_eq!(ann.name, "ann@example.com");
    assert_eq!(ann.rules.spend_limit, limit("0.1", Cycle::Daily));
}

#[test]
fn a_key_keeps_its_hash_and_its_limits() {
    let (agent, notes) = key(json!({
        "max_budget": 2.5, "budget_duration": "1mo", "rpm_limit": 60, "spend": 0.12345678905,
        "expires": "2026-12-01T00:00:00", "models": ["gpt-4o-mini", "claude-*"], "blocked": null,
    }));
    assert_eq!(notes, <Vec<String>>::new());
    assert_eq!(agent.hash[..3], [0x88, 0xdc, 0x28]);
    assert_eq!((agent.name.as_str(), agent.preview.as_str()), ("Agent", "sk-...abcd"));
    assert_eq!(agent.rules.spend_limit, limit("2.5", Cycle::Monthly));
    assert_eq!(agent.rules.rate_limit, Some(RateLimit { rpm: 60, burst: 60 }));
    assert_eq!(agent.rules.status, SpendKeyStatus::Active);
    let models = ["gpt-4o-mini", "claude-*"].map(str::to_owned);
    assert_eq!(agent.rules.allowed_models, Some(models.to_vec()));
    assert_eq!(agent.rules.expires_at, Some("2026-12-01T00:00:00Z".parse().unwrap()));
    // Half to even: the digit before the half is even.
    assert_eq!(agent.spent, usd("0.123456789"));
    let (odd, _) = key(json!({"spend": 0.12345678915}));
    assert_eq!(odd.spent, usd("0.1234567892"));
    let (tiny, _) = key(json!({"spend": 1e-12}));
    assert_eq!(tiny.spent, Amount::ZERO);
    let (huge, _) = key(json!({"spend": 1e300}));
    assert_eq!(huge.spent, Amount::from_units(i64::MAX));
}

#[test]
fn durations_and_words_are_those_of_the_table() {
    for (duration, cycle) in [
        (json!("1d"), Cycle::Daily),
        (json!("24h"), Cycle::Daily),
        (json!("7d"), Cycle::Weekly),
        (json!("30d"), Cycle::Monthly),
        (json!("1mo"), Cycle::Monthly),
        (Value::Null, Cycle::Total),
    ] {
        let (one, notes) = key(json!({"max_budget": 1.0, "budget_duration": duration}));
        assert_eq!((one.rules.spend_limit, notes), (limit("1", cycle), Vec::new()), "{duration}");
    }
    let (one, notes) = key(json!({"max_budget": 1.0, "budget_duration": "90d"}));
    assert_eq!(one.rules.spend_limit, limit("1", Cycle::Total), "it never allows more");
    assert_eq!(notes, ["key Agent: the duration 90d becomes total"]);
    for (columns, is_paused) in [
        (json!({"blocked": true}), true),
        (json!({"blocked": false}), false),
        (json!({"max_budget": 0.0}), true),
        (json!({"rpm_limit": 0}), true),
    ] {
        let (one, _) = key(columns.clone());
        assert_eq!(one.rules.status == SpendKeyStatus::Paused, is_paused, "{columns}");
    }
    for (models, expected) in [
        (json!([]), None),
        (json!(["all-proxy-models"]), None),
        (json!(["no-default-models"]), Some(Vec::new())),
        (json!(["a", "no-default-models"]), Some(vec!["a".to_owned()])),
    ] {
        assert_eq!(key(json!({"models": models})).0.rules.allowed_models, expected, "{models}");
    }
}

#[test]
fn a_key_names_its_team_else_its_user_else_its_organization() {
    let row = |alias: &str, columns: Value| {
        let token: String = alias.bytes().map(|byte| format!("{byte:02x}")).collect();
        let mut row = json!({"token": format!("{token:0<64}"), "key_alias": alias});
        row.as_object_mut().unwrap().extend(columns.as_object().unwrap().clone());
        row
    };
    let keys = json!([
        row("both", json!({"team_id": "t1", "user_id": "u1", "models": ["all-team-models"]})),
        row("user", json!({"user_id": "u1", "team_id": null})),
        row("organization", json!({"organization_id": "o1"})),
        row("none", json!({})),
        row("gone", json!({"team_id": "t9"})),
        row("pages", json!({"team_id": "litellm-dashboard"})),
        row("shared", json!({"budget_id": "b1", "max_budget": null})),
        row("wide", json!({"team_id": "t1"})),
    ]);
    let teams = json!([{"team_id": "t1", "models": ["a", "b*"]}]);
    let users = json!([{"user_id": "u1", "max_budget": 5}]);
    let organizations = json!([{"organization_id": "o1", "organization_alias": "O"}]);
    let budgets =
        json!([{"budget_id": "b1", "max_budget": 7, "budget_duration": "1d", "rpm_limit": 3}]);
    let import = imported([keys, teams, organizations, users, budgets]);
    let named: Vec<_> = import
        .keys
        .iter()
        .map(|key| (key.name.as_str(), key.budget.as_ref().map(ToString::to_string)))
        .collect();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        named,
        [
            ("both", some("team t1")),
            ("user", some("user u1")),
            ("organization", some("organization o1")),
            ("none", None),
            ("gone", None),
            ("shared", None),
            ("wide", some("team t1")),
        ]
    );
    let models = ["a", "b*"].map(str::to_owned).to_vec();
    assert_eq!(import.keys[0].rules.allowed_models, Some(models));
    assert_eq!(import.keys[4].rules.status, SpendKeyStatus::Paused);
    assert_eq!(import.keys[5].rules.spend_limit, limit("7", Cycle::Daily));
    assert_eq!(import.keys[5].rules.rate_limit, Some(RateLimit { rpm: 3, burst: 3 }));
    assert_eq!(
        import.notes,
        [
            "key both: the limit of user u1 does not apply beside the team's",
            "key gone: its team t9 is in no table, so it is paused",
            "key wide: it may call models that team t1 does not list",
        ]
    );
}

#[test]
fn what_has_no_counterpart_is_noted_and_bad_rows_are_named() {
    let (_, notes) = key(json!({
        "tpm_limit": 5, "max_parallel_requests": 2, "soft_budget": 1.0, "project_id": "p1",
        "model_max_budget": {"gpt-4": {"budget_limit": 1}}, "budget_limits": null,
        "tpd_limit": 9,
    }));
    let names = [
        "tpm_limit",
        "tpd_limit",
        "max_parallel_requests",
        "soft_budget",
        "model_max_budget",
        "project_id",
    ];
    let expected = names.map(|name| format!("key Agent: {name} has no counterpart"));
    assert_eq!(notes, expected);
    let mut tables = Tables::default();
    for (table, text, part) in [
        ("LiteLLM_SpendLogs", "[]", "LiteLLM_SpendLogs is no table that is imported"),
        ("LiteLLM_TeamTable", "{}", "LiteLLM_TeamTable is no JSON array of rows"),
        ("LiteLLM_TeamTable", r#"[{"team_id": "t"}, {"team_id": 5}]"#, "LiteLLM_TeamTable, row 2"),
        ("LiteLLM_VerificationToken", "[{}]", "missing field `token`"),
    ] {
        let error = tables.add(table, text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    // `json_agg` of no rows is null.
    tables.add("LiteLLM_UserTable", "null").unwrap();
    let plain = json!([{"token": "sk-not-hashed"}]);
    let import = imported([plain, json!([]), json!([]), json!([]), json!([])]);
    assert!(import.keys.is_empty() && import.notes[0].contains("is left out"), "{import:?}");
}

#[test]
fn a_row_that_may_be_limited_by_one_that_is_missing_is_paused() {
    for (columns, note) in [
        (json!({"team_id": "t"}), "its team t is in no table, so it is paused"),
        (json!({"budget_id": "b"}), "its budget b is in no table, so it is paused"),
        (json!({"organization_id": "o"}), "its organization o is in no table, so it is paused"),
        (
            json!({"allowed_routes": ["info_routes"]}),
            "allowed_routes has no counterpart, so it is paused",
        ),
    ] {
        let (one, notes) = key(columns);
        assert_eq!(one.rules.status, SpendKeyStatus::Paused);
        assert_eq!(notes, [format!("key Agent: {note}")]);
    }
    let (one, notes) = key(json!({"user_id": "u", "allowed_routes": ["llm_api_routes"],
        "aliases": {"a": "b"}, "permissions": {"x": true}, "metadata": {"model_rpm_limit": {"a": 1}}}));
    assert_eq!(one.rules.status, SpendKeyStatus::Active);
    let expected = [
        "aliases has no counterpart",
        "permissions has no counterpart",
        "model_rpm_limit has no counterpart",
        "allowed_routes has no counterpart",
        "its user u is in no table",
    ];
    assert_eq!(notes, expected.map(|note| format!("key Agent: {note}")));
    let organizations = json!([{"organization_id": "o", "budget_id": "b"}]);
    let teams = json!([{"team_id": "t", "organization_id": "x"}]);
    let import = imported([json!([]), teams, organizations, json!([]), json!([])]);
    assert!(import.budgets.iter().all(|one| one.rules.status == BudgetStatus::Paused));
    assert_eq!(import.notes.len(), 2);
}

#[test]
fn the_first_of_two_rows_counts_and_a_name_has_letters() {
    let keys = json!([
        {"token": HASH, "key_alias": " ", "key_name": "sk-...1"},
        {"token": HASH.to_uppercase(), "key_alias": "again"},
    ]);
    let teams = json!([{"team_id": "t", "team_alias": "\n"}, {"team_id": "t", "team_alias": "T"}]);
    let users = json!([{"user_id": "u", "user_alias": "", "user_email": "u@example.com"}]);
    let budgets = json!([{"budget_id": "b"}]);
    let import = imported([keys, teams, json!([]), users, budgets]);
    let names: Vec<_> = import.budgets.iter().map(|one| one.name.as_str()).collect();
    assert_eq!((names, import.keys.len()), (vec!["t", "u@example.com"], 1));
    assert_eq!(import.keys[0].name, "sk-...1");
    assert_eq!(
        import.notes,
        [
            "team t: it has another row, which is left out",
            "key again: it has another row, which is left out",
        ]
    );
}

/// The tables of LiteLLM 1.108.7, as PostgreSQL exported them.
#[test]
fn tables_of_a_real_database_are_read() {
    let mut tables = Tables::default();
    for (table, text) in [
        (TABLES[0], include_str!("data/LiteLLM_VerificationToken.json")),
        (TABLES[1], include_str!("data/LiteLLM_TeamTable.json")),
        (TABLES[2], include_str!("data/LiteLLM_OrganizationTable.json")),
        (TABLES[3], include_str!("data/LiteLLM_UserTable.json")),
        (TABLES[4], include_str!("data/LiteLLM_BudgetTable.json")),
    ] {
        tables.add(table, text).unwrap();
    }
    let import = import(&tables);
    let budgets: Vec<_> = import
        .budgets
        .iter()
        .map(|one| (one.name.as_str(), one.spent.to_string(), one.rules.spend_limit))
        .collect();
    assert_eq!(
        budgets,
        [
            ("Acme", "12.3456789012".to_owned(), limit("1000", Cycle::Monthly)),
            ("Research", "0.3000000000".to_owned(), limit("50", Cycle::Weekly)),
            ("ann@example.com", "0.0100000000".to_owned(), limit("5", Cycle::Daily)),
            ("default_user_id", "0.0000000000".to_owned(), None),
        ]
    );
    let keys: Vec<_> = import
        .keys
        .iter()
        .map(|key| (key.name.as_str(), key.rules.status, key.budget.as_ref().map(|of| of.pair().1)))
        .collect();
    use SpendKeyStatus::{Active, Paused};
    assert_eq!(
        keys,
        [
            ("agent", Active, Some("team-1")),
            ("ann", Active, Some("u-1")),
            ("old", Paused, Some("u-1")),
            ("tight", Active, None),
        ]
    );
    let models = ["gpt-4o-mini", "simulated*"].map(str::to_owned).to_vec();
    assert_eq!(import.keys[0].rules.allowed_models, Some(models));
    assert_eq!(
        import.keys[0].hash,
        tollgate_domain::Key::parse("sk-Team_abcdefghijklmnop1234").unwrap().hash()
    );
    assert_eq!(
        import.notes,
        [
            "team team-1: tpm_limit has no counterpart",
            "team team-1: its members have no counterpart",
            "key agent: the limit of user u-1 does not apply beside the team's",
        ]
    );
}
