// Package example has the keeper of the examples in the documentation.
package example

import (
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/redis/go-redis/v9"
)

// Keeper returns a keeper, with the label host-1, on a server within the process, on which leases end; and what ends both.
func Keeper() (k *lockkeeper.Keeper, end func()) {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	server.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	k, err = lockkeeper.New(rdb, &lockkeeper.Options{Owner: "host-1"})
	if err != nil {
		log.Fatal(err)
	}
	return k, func() {
		_ = k.Close()
		_ = rdb.Close()
		server.Close()
	}
}
