package certmagic_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/alicebob/miniredis/v2"
	cm "github.com/caddyserver/certmagic"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/contrib/certmagic"
	"github.com/redis/go-redis/v9"
)

func Example() {
	server, err := miniredis.Run() // in production, your Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	server.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	k, err := lockkeeper.New(rdb, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer k.Close()

	locker, err := certmagic.New(k, nil)
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "certificates")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cm.Default.Storage = certmagic.Wrap(&cm.FileStorage{Path: dir}, locker)

	ctx := context.Background()
	if err := cm.Default.Storage.Lock(ctx, "issue_cert_example.com"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("locked")
	fmt.Println(cm.Default.Storage.Unlock(ctx, "issue_cert_example.com"))
	// Output:
	// locked
	// <nil>
}
