package migratelock_test

import (
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"testing/fstest"

	"github.com/alicebob/miniredis/v2"
	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database/sqlite"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/lockkeeper/lockkeeper"
	migratelock "github.com/lockkeeper/lockkeeper/contrib/migrate"
	"github.com/lockkeeper/lockkeeper/fair"
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
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	fmt.Println(migrateShop(k, filepath.Join(dir, "shop.db")))
	fmt.Println(migrateShop(k, filepath.Join(dir, "shop.db")))
	// Output:
	// <nil>
	// no change
}

func migrateShop(k *lockkeeper.Keeper, path string) error {
	source, err := iofs.New(fstest.MapFS{ // in production, an embed.FS
		"1_orders.up.sql": {Data: []byte("CREATE TABLE orders (id INTEGER PRIMARY KEY)")},
	}, ".")
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err
	}
	driver, err := sqlite.WithInstance(db, &sqlite.Config{})
	if err != nil {
		return err
	}
	lock, err := fair.New(k, "migrate:shop", nil)
	if err != nil {
		return err
	}
	locked, err := migratelock.Wrap(driver, lock, nil)
	if err != nil {
		return err
	}
	m, err := migrate.NewWithInstance("iofs", source, "sqlite", locked)
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Up()
}
