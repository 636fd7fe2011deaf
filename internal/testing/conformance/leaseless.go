package conformance

// Leaseless are the shared cases that apply to a rate limit without leases, where Wait and Allow stand for Lock and TryLock; see
// Primitive.Only. The others use the lease, go on when a lease is released, are about TTL, or wait until a deadline, while a wait
// that cannot end before its deadline is refused at once. RateLimits has what such a limit promises instead.
var Leaseless = []string{
	"02_one_of_100_try_locks_succeeds",
	"03_contended_try_lock_returns_immediately",
	"08_wait_cancelled_during_grant_cleans_up",
	"16_cancel_100_waiters",
	"30_waiters_served_in_order",
	"33_heartbeat_counts_until_timeout",
	"56_unlimited_retries_outlast_outage",
	"60_server_slower_than_ttl_is_an_error",
	"61_outage_during_acquire_is_not_contention",
	"f19_slow_subscription_disconnected",
	"f33_server_loading",
	"f35_waiter_on_server_refusing_writes",
	"f53_missing_permissions",
}
