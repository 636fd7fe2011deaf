package riverlock_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"log/slog"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/lockkeeper/lockkeeper"
	riverlock "github.com/lockkeeper/lockkeeper/contrib/river"
	"github.com/lockkeeper/lockkeeper/joblimit"
)

// export is a job.
type export struct {
	Customer string `json:"customer"`
}

func (export) Kind() string { return "export" }

// A worker that exports one customer at a time, however many workers there are.
func Example() {
	ctx := context.Background()
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	k, err := lockkeeper.New(rdb, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer k.Close()
	db, err := sql.Open("sqlite", "file::memory:")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	migrator, err := rivermigrate.New(riversqlite.New(db), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		log.Fatal(err)
	}

	limiter, err := joblimit.Exclusive(k, nil)
	if err != nil {
		log.Fatal(err)
	}
	byArguments := func(job *rivertype.JobRow) string { return job.Kind + string(job.EncodedArgs) }
	exported := make(chan string)
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[export]) error {
		exported <- job.Args.Customer
		return nil
	}))
	client, err := river.NewClient(riversqlite.New(db), &river.Config{
		Queues:     map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 20}},
		Workers:    workers,
		Middleware: []rivertype.Middleware{riverlock.Middleware(limiter, byArguments)},
		Logger:     slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := client.Start(ctx); err != nil {
		log.Fatal(err)
	}
	defer client.Stop(ctx)
	if _, err := client.Insert(ctx, export{Customer: "42"}, nil); err != nil {
		log.Fatal(err)
	}
	fmt.Println("exported customer", <-exported)
	// Output: exported customer 42
}
