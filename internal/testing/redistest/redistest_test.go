package redistest

import (
	"context"
	"testing"
)

func TestStartClusterAndSentinel(t *testing.T) {
	ctx := context.Background()
	if err := StartCluster(t, 3, 0).Client().Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Error(err)
	}
	if err := StartSentinel(t, 1).Client().Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Error(err)
	}
}
