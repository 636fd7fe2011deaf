module github.com/lockkeeper/lockkeeper/contrib/cron

go 1.26.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/lockkeeper/lockkeeper v0.1.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/robfig/cron/v3 v3.0.1
)

require (
	github.com/cenkalti/backoff/v4 v4.3.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
