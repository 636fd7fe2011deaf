package recipes

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper"
)

// What follows stands for the code that the locks protect.

var errBusy = errors.New("busy")

func charge(_ context.Context, order string, _ uint64) error { return say("charges", order) }

func work(context.Context, uint64) error { return say("works") }

func makeReport(context.Context, uint64) error { return say("makes the report") }

func schedule(context.Context, uint64) error { return say("schedules") }

func move(context.Context, uint64, uint64) error { return say("moves money") }

func call(context.Context) error { return say("calls") }

func compute() string {
	_ = say("computes")
	return "12.50"
}

func load(context.Context) string {
	_ = say("loads")
	return "a catalog"
}

func store(_ context.Context, text string, _ uint64) error { return say("stores", text) }

func run(context.Context, *lockkeeper.Keeper) { _ = say("stops") }

func say(words ...any) error {
	_, err := fmt.Println(words...)
	return err
}
