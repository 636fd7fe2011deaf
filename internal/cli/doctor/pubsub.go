package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// checkPubSub publishes a message to a subscription of its own.
func (n *node) checkPubSub(ctx context.Context) {
	if n.keys == nil {
		return
	}
	const effect = ": otherwise waiters are not notified, and retry only at their heartbeats"
	f, err := n.publishAndReceive(ctx)
	if err != nil {
		f = unavailable("", err)
		switch {
		case redis.IsPermissionError(err):
			f.Status, f.Detail = statusWarning, err.Error()
			f.ACLRules = "+publish +subscribe &" + n.prefix + "* &{" + n.prefix + "*"
			if n.target.Cluster != nil {
				f.ACLRules = "+spublish +ssubscribe &" + n.prefix + "* &{" + n.prefix + "*"
			}
			f.Advice = "add the ACL rules" + effect
		case isServerError(err):
			f.Status = statusWarning
			f.Advice = "use a server that has the command" + effect
		}
	}
	n.add(n, "pubsub", f)
}

func (n *node) publishAndReceive(ctx context.Context) (finding, error) {
	var (
		sub     *redis.PubSub
		publish func(context.Context, string, any) *redis.IntCmd
		what    string
	)
	if n.target.Cluster == nil {
		sub, publish, what = n.client.Subscribe(ctx, n.prefix+"wake:"+n.lockName), n.client.Publish, "a message"
	} else {
		sub, publish, what = n.client.SSubscribe(ctx, n.sharded), n.client.SPublish, "a sharded message"
	}
	defer func() { _ = sub.Close() }()
	var sent time.Time
	for {
		reply, err := receive(ctx, sub)
		if err != nil {
			return finding{}, err
		}
		switch reply := reply.(type) {
		case *redis.Subscription:
			if reply.Kind != "subscribe" && reply.Kind != "ssubscribe" {
				return finding{}, fmt.Errorf("%s", reply.Kind)
			}
			sent = time.Now()
			receivers, err := publish(ctx, reply.Channel, "doctor").Result()
			if err != nil {
				return finding{}, err
			}
			if receivers == 0 {
				return finding{
					Status: statusError, Detail: what + " had no receiver, although the subscription was confirmed",
					Advice: "connect without the proxy that confirms subscriptions itself",
				}, nil
			}
		case *redis.Message:
			d := ms(time.Since(sent))
			return finding{Detail: fmt.Sprintf("%s was received after %.2f ms", what, d), Values: map[string]float64{"pubsub_ms": d}}, nil
		}
	}
}

// receive waits for the next message until ctx ends.
func receive(ctx context.Context, sub *redis.PubSub) (any, error) {
	deadline, _ := ctx.Deadline()
	timeout := time.Until(deadline)
	if timeout <= 0 {
		return nil, context.DeadlineExceeded
	}
	return sub.ReceiveTimeout(ctx, timeout)
}
