module github.com/lockkeeper/lockkeeper/examples/migration

go 1.26.0

replace github.com/lockkeeper/lockkeeper => ../../

require (
	github.com/go-redsync/redsync/v4 v4.18.1
	github.com/lockkeeper/lockkeeper v0.1.0
	github.com/redis/go-redis/v9 v9.23.0
)

require (
	github.com/cenkalti/backoff/v4 v4.3.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
