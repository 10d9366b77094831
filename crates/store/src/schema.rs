//! The tables, the same on both databases. The migrations describe them.

diesel::table! {
    merchants (merchant_id) {
        merchant_id -> Binary,
        name -> Text,
        wallet_id -> Binary,
        created_at -> BigInt,
        time_zone -> Text,
        moved_to -> Nullable<Integer>,
        moved_at -> Nullable<BigInt>,
    }
}

diesel::table! {
    secret_keys (secret_key_id) {
        secret_key_id -> Binary,
        merchant_id -> Binary,
        name -> Text,
        key_hash -> Binary,
        key_preview -> Text,
        created_at -> BigInt,
        deleted_at -> Nullable<BigInt>,
    }
}

diesel::table! {
    sessions (token_hash) {
        token_hash -> Binary,
        secret_key_id -> Binary,
        merchant_id -> Binary,
        expires_at -> BigInt,
    }
}

diesel::table! {
    wallets (wallet_id) {
        wallet_id -> Binary,
        merchant_id -> Binary,
        connection_id -> Nullable<Binary>,
        balance -> BigInt,
        held -> BigInt,
        overdraft_limit -> Nullable<BigInt>,
        low_balance_threshold -> Nullable<BigInt>,
        subscription_id -> Nullable<Binary>,
        cycle_credit -> BigInt,
        cycle_held -> BigInt,
        cycle_expired -> BigInt,
        bundle_credit -> BigInt,
        bundle_held -> BigInt,
        bundle_expired -> BigInt,
        cycles -> BigInt,
        transactions -> BigInt,
        records -> BigInt,
        created_at -> BigInt,
    }
}

diesel::table! {
    connections (connection_id) {
        connection_id -> Binary,
        merchant_id -> Binary,
        reference_id -> Nullable<Text>,
        name -> Nullable<Text>,
        email -> Nullable<Text>,
        metadata -> Text,
        wallet_id -> Binary,
        created_at -> BigInt,
        deleted_at -> Nullable<BigInt>,
        suspended_at -> Nullable<BigInt>,
        report -> Nullable<Text>,
        budget_id -> Nullable<Binary>,
    }
}

diesel::table! {
    meters (meter_id) {
        meter_id -> Binary,
        merchant_id -> Binary,
        slug -> Text,
        name -> Text,
        tier_period -> Text,
        version -> Integer,
        created_at -> BigInt,
        deleted_at -> Nullable<BigInt>,
    }
}

diesel::table! {
    meter_versions (meter_id, version) {
        meter_id -> Binary,
        merchant_id -> Binary,
        version -> Integer,
        model -> Text,
        created_at -> BigInt,
    }
}

diesel::table! {
    tier_counters (merchant_id, owner_id, meter_id, period) {
        merchant_id -> Binary,
        owner_id -> Binary,
        meter_id -> Binary,
        period -> Text,
        used -> BigInt,
    }
}

diesel::table! {
    open_calls (request_id) {
        request_id -> Binary,
        merchant_id -> Binary,
        node_id -> Binary,
        connection_id -> Nullable<Binary>,
        spend_key_id -> Nullable<Binary>,
        wallet_id -> Nullable<Binary>,
        merchant_wallet_id -> Binary,
        meter_id -> Nullable<Binary>,
        meter_version -> Nullable<Integer>,
        disable_billing -> Bool,
        spend_hold -> BigInt,
        wallet_hold -> BigInt,
        cycle_hold -> BigInt,
        bundle_hold -> BigInt,
        credit_cycle -> Nullable<BigInt>,
        merchant_hold -> BigInt,
        forwarded -> Text,
        created_at -> BigInt,
        budgets -> Nullable<Text>,
        run_id -> Nullable<Text>,
        is_ahead -> Bool,
    }
}

diesel::table! {
    requests (merchant_id, request_id) {
        merchant_id -> Binary,
        request_id -> Binary,
        sequence -> BigInt,
        reference_id -> Nullable<Text>,
        connection_id -> Nullable<Binary>,
        spend_key_id -> Nullable<Binary>,
        wallet_id -> Nullable<Binary>,
        merchant_wallet_id -> Binary,
        meter_id -> Nullable<Binary>,
        meter_version -> Nullable<Integer>,
        disable_billing -> Bool,
        status -> SmallInt,
        credit_cycle -> Nullable<BigInt>,
        wallet_cost -> BigInt,
        merchant_cost -> BigInt,
        counted_units -> BigInt,
        swept -> Bool,
        forwarded -> Text,
        outcome -> Text,
        created_at -> BigInt,
        settled_at -> Nullable<BigInt>,
        budgets -> Nullable<Text>,
        run_id -> Nullable<Text>,
    }
}

diesel::table! {
    corrections (merchant_id, request_id) {
        merchant_id -> Binary,
        request_id -> Binary,
        status -> SmallInt,
        wallet_cost -> BigInt,
        merchant_cost -> BigInt,
        counted_units -> BigInt,
        outcome -> Text,
        created_at -> BigInt,
    }
}

diesel::table! {
    reported_usage (merchant_id, reference_id) {
        merchant_id -> Binary,
        reference_id -> Text,
        request_id -> Binary,
    }
}

diesel::table! {
    rollup_queue (number) {
        number -> BigInt,
        calls -> Text,
        created_at -> BigInt,
    }
}

diesel::table! {
    request_index (merchant_id, key, value, request_id) {
        merchant_id -> Binary,
        key -> Text,
        value -> Text,
        request_id -> Binary,
    }
}

diesel::table! {
    transactions (wallet_id, number) {
        transaction_id -> Binary,
        merchant_id -> Binary,
        wallet_id -> Binary,
        account -> SmallInt,
        number -> BigInt,
        kind -> SmallInt,
        amount -> BigInt,
        balance_after -> BigInt,
        request_id -> Nullable<Binary>,
        description -> Nullable<Text>,
        created_at -> BigInt,
    }
}

diesel::table! {
    transaction_keys (wallet_id, idempotency_key) {
        wallet_id -> Binary,
        idempotency_key -> Text,
        merchant_id -> Binary,
        number -> BigInt,
    }
}

diesel::table! {
    subscription_configs (subscription_config_id) {
        subscription_config_id -> Binary,
        merchant_id -> Binary,
        name -> Text,
        period_amount -> BigInt,
        billing_interval -> Text,
        version -> Integer,
        created_at -> BigInt,
        deleted_at -> Nullable<BigInt>,
    }
}

diesel::table! {
    subscription_config_versions (subscription_config_id, version) {
        subscription_config_id -> Binary,
        merchant_id -> Binary,
        version -> Integer,
        terms -> Text,
        created_at -> BigInt,
    }
}

diesel::table! {
    credit_bundles (credit_bundle_id) {
        credit_bundle_id -> Binary,
        subscription_config_id -> Binary,
        merchant_id -> Binary,
        name -> Text,
        cost -> BigInt,
        credit_amount -> BigInt,
        created_at -> BigInt,
        deleted_at -> Nullable<BigInt>,
    }
}

diesel::table! {
    subscriptions (subscription_id) {
        subscription_id -> Binary,
        merchant_id -> Binary,
        connection_id -> Binary,
        wallet_id -> Binary,
        subscription_config_id -> Binary,
        status -> Text,
        started_at -> BigInt,
        cancelled_at -> Nullable<BigInt>,
        anchor_at -> BigInt,
        cycle -> BigInt,
        cycle_start_at -> BigInt,
        cycle_end_at -> BigInt,
        pending_change -> Nullable<Text>,
        pending_config_id -> Nullable<Binary>,
    }
}

diesel::table! {
    spend_keys (spend_key_id) {
        spend_key_id -> Binary,
        merchant_id -> Binary,
        wallet_id -> Binary,
        connection_id -> Nullable<Binary>,
        meter_id -> Nullable<Binary>,
        name -> Text,
        key_hash -> Binary,
        key_preview -> Text,
        rules -> Text,
        created_at -> BigInt,
        deleted_at -> Nullable<BigInt>,
        budget_id -> Nullable<Binary>,
    }
}

diesel::table! {
    budgets (budget_id) {
        budget_id -> Binary,
        merchant_id -> Binary,
        parent_id -> Nullable<Binary>,
        name -> Text,
        rules -> Text,
        matches -> Bool,
        metadata -> Text,
        created_at -> BigInt,
        deleted_at -> Nullable<BigInt>,
    }
}

diesel::table! {
    spend_counters (account_id) {
        account_id -> Binary,
        merchant_id -> Binary,
        day_spent -> BigInt,
        week_spent -> BigInt,
        month_spent -> BigInt,
        total_spent -> BigInt,
        day_held -> BigInt,
        week_held -> BigInt,
        month_held -> BigInt,
        total_held -> BigInt,
        day_requests -> BigInt,
        week_requests -> BigInt,
        month_requests -> BigInt,
        total_requests -> BigInt,
        day_told -> Integer,
        week_told -> Integer,
        month_told -> Integer,
        total_told -> Integer,
        bucket_full_at -> BigInt,
        last_used_at -> Nullable<BigInt>,
    }
}

diesel::table! {
    events (event_id) {
        number -> BigInt,
        event_id -> Binary,
        merchant_id -> Binary,
        kind -> Text,
        resource -> Text,
        news -> Text,
        created_at -> BigInt,
        dispatched_at -> Nullable<BigInt>,
    }
}

diesel::table! {
    webhooks (webhook_id) {
        webhook_id -> Binary,
        merchant_id -> Binary,
        name -> Text,
        url -> Text,
        events -> Nullable<Text>,
        secrets -> Text,
        sequence -> BigInt,
        due_at -> Nullable<BigInt>,
        created_at -> BigInt,
        deleted_at -> Nullable<BigInt>,
        requests_since -> Nullable<BigInt>,
        events_before -> BigInt,
    }
}

diesel::table! {
    deliveries (delivery_id) {
        delivery_id -> Binary,
        merchant_id -> Binary,
        webhook_id -> Binary,
        event_id -> Binary,
        resource -> Text,
        sequence -> BigInt,
        status -> Text,
        attempts -> Integer,
        failures -> Integer,
        queued_at -> BigInt,
        last_attempt_at -> Nullable<BigInt>,
        next_attempt_at -> Nullable<BigInt>,
        response_status -> Nullable<Integer>,
        response_body -> Nullable<Text>,
        fault -> Nullable<Text>,
        duration_ms -> Nullable<Integer>,
        created_at -> BigInt,
    }
}

diesel::table! {
    idempotent_answers (merchant_id, scope, idempotency_key) {
        merchant_id -> Binary,
        scope -> Text,
        idempotency_key -> Text,
        fingerprint -> Binary,
        status -> Integer,
        body -> Text,
        created_at -> BigInt,
    }
}

diesel::table! {
    usage_series (merchant_id, key, value, series_id) {
        merchant_id -> Binary,
        key -> Text,
        value -> Text,
        series_id -> Binary,
        connection_id -> Nullable<Binary>,
        spend_key_id -> Nullable<Binary>,
        budget_id -> Nullable<Binary>,
        budgets -> Nullable<Text>,
        meter_id -> Nullable<Binary>,
        provider -> Nullable<Text>,
        model -> Nullable<Text>,
        status -> Nullable<SmallInt>,
    }
}

diesel::table! {
    runs (account_id) {
        account_id -> Binary,
        merchant_id -> Binary,
        connection_id -> Nullable<Binary>,
        spend_key_id -> Nullable<Binary>,
        run_id -> Text,
        run_limit -> Nullable<BigInt>,
        first_at -> BigInt,
    }
}

diesel::table! {
    jobs (job_id) {
        job_id -> Binary,
        request_id -> Binary,
        merchant_id -> Binary,
        kind -> SmallInt,
        provider -> Text,
        object_id -> Text,
        connection_id -> Nullable<Binary>,
        spend_key_id -> Nullable<Binary>,
        state -> SmallInt,
        hold -> BigInt,
        terms -> Text,
        known -> Nullable<Text>,
        provider_key -> Nullable<Binary>,
        created_at -> BigInt,
        last_seen_at -> Nullable<BigInt>,
        missing_since -> Nullable<BigInt>,
        look_at -> Nullable<BigInt>,
        ended_at -> Nullable<BigInt>,
        expires_at -> BigInt,
        observer -> Nullable<SmallInt>,
    }
}

diesel::table! {
    provider_objects (object_id, provider) {
        object_id -> Text,
        provider -> Text,
        merchant_id -> Binary,
        wallet_id -> Binary,
        kind -> SmallInt,
        tokens -> Nullable<BigInt>,
        requests -> Nullable<Text>,
        result_of -> Nullable<Text>,
        created_at -> BigInt,
        expires_at -> BigInt,
    }
}

diesel::table! {
    provider_events (object_id, provider) {
        object_id -> Text,
        provider -> Text,
        received_at -> BigInt,
    }
}

diesel::table! {
    imports (account_id) {
        account_id -> Binary,
        merchant_id -> Binary,
        source -> Text,
        spent -> BigInt,
        imported_at -> BigInt,
    }
}

diesel::table! {
    usage_rollups (series_id, width, slot) {
        series_id -> Binary,
        width -> Integer,
        slot -> BigInt,
        requests -> BigInt,
        failed -> BigInt,
        input_tokens -> BigInt,
        output_tokens -> BigInt,
        cached_input_tokens -> BigInt,
        cache_write_tokens -> BigInt,
        reasoning_tokens -> BigInt,
        input_audio_tokens -> BigInt,
        output_audio_tokens -> BigInt,
        usage_cost -> BigInt,
        provider_cost -> BigInt,
        fee -> BigInt,
        service_charge -> BigInt,
        wallet_cost -> BigInt,
        merchant_cost -> BigInt,
        revenue -> BigInt,
    }
}

diesel::table! {
    metadata_rollups (merchant_id, width, slot, set_id) {
        merchant_id -> Binary,
        width -> Integer,
        slot -> BigInt,
        set_id -> Binary,
        requests -> BigInt,
        failed -> BigInt,
        input_tokens -> BigInt,
        output_tokens -> BigInt,
        cached_input_tokens -> BigInt,
        cache_write_tokens -> BigInt,
        reasoning_tokens -> BigInt,
        input_audio_tokens -> BigInt,
        output_audio_tokens -> BigInt,
        usage_cost -> BigInt,
        provider_cost -> BigInt,
        fee -> BigInt,
        service_charge -> BigInt,
        wallet_cost -> BigInt,
        merchant_cost -> BigInt,
        revenue -> BigInt,
    }
}

diesel::table! {
    metadata_sets (merchant_id, set_id) {
        merchant_id -> Binary,
        set_id -> Binary,
        metadata -> Text,
    }
}

diesel::table! {
    high_cardinality_keys (merchant_id, key) {
        merchant_id -> Binary,
        key -> Text,
    }
}

diesel::table! {
    plan_charges (wallet_id, charged_at, event_id) {
        wallet_id -> Binary,
        charged_at -> BigInt,
        event_id -> Binary,
        merchant_id -> Binary,
        subscription_id -> Binary,
        kind -> Text,
        name -> Text,
        amount -> BigInt,
    }
}

diesel::table! {
    refusals (merchant_id, refusal_id) {
        merchant_id -> Binary,
        refusal_id -> Binary,
        code -> Text,
        spend_key_id -> Nullable<Binary>,
        secret_key_id -> Nullable<Binary>,
        connection_id -> Nullable<Binary>,
        model -> Nullable<Text>,
        count -> BigInt,
        first_at -> BigInt,
        last_at -> BigInt,
        call -> Text,
        run_id -> Nullable<Text>,
    }
}

diesel::table! {
    refusal_counts (merchant_id, slot, code, spend_key_id, connection_id) {
        merchant_id -> Binary,
        slot -> BigInt,
        code -> Text,
        spend_key_id -> Binary,
        connection_id -> Binary,
        count -> BigInt,
    }
}

diesel::table! {
    missing_prices (merchant_id, day, provider, model) {
        merchant_id -> Binary,
        day -> BigInt,
        provider -> Text,
        model -> Text,
    }
}

diesel::table! {
    repricings (merchant_id, request_id, number) {
        merchant_id -> Binary,
        request_id -> Binary,
        number -> Integer,
        base_before -> BigInt,
        base_after -> BigInt,
        wallet_delta -> BigInt,
        merchant_delta -> BigInt,
        applied -> Text,
        created_at -> BigInt,
    }
}

diesel::table! {
    serving (epoch) {
        epoch -> BigInt,
        node_id -> Binary,
        lock_file -> Text,
        since -> BigInt,
        has_ended -> Bool,
    }
}

diesel::table! {
    nodes (node_id) {
        node_id -> Binary,
        lease_until -> BigInt,
    }
}

diesel::table! {
    cell (one) {
        one -> Integer,
        number -> Integer,
    }
}

diesel::table! {
    breaking_migrations (version) {
        version -> Text,
    }
}

diesel::table! {
    price_lists (number) {
        number -> BigInt,
        released -> Text,
        source -> Text,
        accepted_at -> BigInt,
        list -> Text,
    }
}

diesel::table! {
    archived_months (month) {
        month -> Text,
        manifest -> Text,
        sealed_at -> BigInt,
        deleted_at -> Nullable<BigInt>,
        transactions_deleted_at -> Nullable<BigInt>,
    }
}

diesel::table! {
    archive_state (number) {
        number -> Integer,
        database_id -> Text,
        closed_until -> BigInt,
        holder -> Nullable<Binary>,
        lease_until -> BigInt,
    }
}

diesel::table! {
    archived_sums (month, merchant_id, owner_id, meter_id, period) {
        month -> Text,
        merchant_id -> Binary,
        owner_id -> Binary,
        meter_id -> Binary,
        period -> Text,
        records -> BigInt,
        amount -> BigInt,
    }
}

diesel::table! {
    archived_transactions (wallet_id, first_number, account) {
        wallet_id -> Binary,
        first_number -> BigInt,
        account -> SmallInt,
        last_number -> BigInt,
        merchant_id -> Binary,
        month -> Text,
        amount -> BigInt,
        balance_after -> BigInt,
        created_at -> BigInt,
    }
}

diesel::joinable!(secret_keys -> merchants (merchant_id));
diesel::joinable!(sessions -> secret_keys (secret_key_id));
diesel::joinable!(spend_keys -> merchants (merchant_id));
diesel::joinable!(spend_counters -> spend_keys (account_id));
diesel::joinable!(spend_counters -> budgets (account_id));
diesel::joinable!(subscription_config_versions -> subscription_configs (subscription_config_id));
diesel::joinable!(meter_versions -> meters (meter_id));
diesel::joinable!(deliveries -> events (event_id));
diesel::joinable!(deliveries -> webhooks (webhook_id));

diesel::allow_tables_to_appear_in_same_query!(
    merchants,
    secret_keys,
    sessions,
    spend_keys,
    spend_counters,
    budgets,
    wallets,
    connections,
    subscriptions
);
diesel::allow_tables_to_appear_in_same_query!(merchants, usage_series);
diesel::allow_tables_to_appear_in_same_query!(archived_months, archived_sums);
diesel::allow_tables_to_appear_in_same_query!(imports, budgets);
diesel::allow_tables_to_appear_in_same_query!(jobs, open_calls);
diesel::allow_tables_to_appear_in_same_query!(jobs, requests);
diesel::joinable!(runs -> spend_counters (account_id));
diesel::allow_tables_to_appear_in_same_query!(runs, spend_counters);
diesel::allow_tables_to_appear_in_same_query!(subscription_configs, subscription_config_versions);
diesel::allow_tables_to_appear_in_same_query!(meters, meter_versions);
diesel::allow_tables_to_appear_in_same_query!(deliveries, events, webhooks);
diesel::allow_tables_to_appear_in_same_query!(requests, reported_usage);
diesel::allow_tables_to_appear_in_same_query!(merchants, transactions);
diesel::allow_tables_to_appear_in_same_query!(transaction_keys, transactions);
