package gooselock_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"testing/fstest"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	gooselock "github.com/lockkeeper/lockkeeper/contrib/goose"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/pressly/goose/v3"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"
)

// migrations stand for the embed.FS of a program.
var migrations = fstest.MapFS{
	"1_users.sql":  {Data: []byte("-- +goose Up\nCREATE TABLE users (id INTEGER);\n-- +goose Down\nDROP TABLE users;\n")},
	"2_orders.sql": {Data: []byte("-- +goose Up\nCREATE TABLE orders (id INTEGER);\n-- +goose Down\nDROP TABLE orders;\n")},
}

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
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection has a database in memory of its own
	if err := migrate(context.Background(), k, db); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 1_users.sql
	// 2_orders.sql
}

// migrate is what a program calls when it starts.
func migrate(ctx context.Context, k *lockkeeper.Keeper, db *sql.DB) error {
	m, err := mutex.New(k, "migrations:shop", nil)
	if err != nil {
		return err
	}
	locker, err := gooselock.New(m)
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, migrations, goose.WithLocker(locker))
	if err != nil {
		return err
	}
	return locker.Do(ctx, func(ctx context.Context) error {
		results, err := provider.Up(ctx)
		for _, r := range results {
			fmt.Println(r.Source.Path)
		}
		return err
	})
}
