package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// cluster is three primaries on this machine. They share its cores with each other and with the clients, so that three
// are not three times as fast as one.
//
//	locks/s      64 goroutines, names of their own over all slots, through one client of the cluster
//	x-single     over the same with one server that is none of a cluster
//	msgs/handoff messages on the cluster's bus for wake-ups, per hand-off among 8 contenders for one name
func cluster(b *bench) {
	if _, err := redistest.Binary(); err != nil {
		b.results.note("cluster: not measured, there is no redis-server to start one: %v", err)
		return
	}
	b.turn("cluster", "all", func(s *stage) { clusterOf(b, redistest.StartCluster(s, 3, 0)) })
}

func clusterOf(b *bench, c *redistest.Cluster) {
	const of, goroutines, contenders = "cluster", 64, 8
	three := target{cluster: c.Addrs()}
	published := func(s *stage) int {
		sum := 0
		for _, p := range c.Primaries {
			info, err := p.Client().ClusterInfo(ctx).Result()
			s.must(err)
			for line := range strings.Lines(info) {
				name, v, _ := strings.Cut(strings.TrimSpace(line), ":")
				if name == "cluster_stats_messages_publish_sent" || name == "cluster_stats_messages_publishshard_sent" {
					n, err := strconv.Atoi(v)
					s.must(err)
					sum += n
				}
			}
		}
		return sum
	}
	var sides []library
	for _, l := range libraries {
		if !l.etcd {
			sides = append(sides, l)
		}
	}
	n, span := pick(b, 5, 1), pick(b, 500*time.Millisecond, 100*time.Millisecond)
	rounds(n, len(sides), func(i int) {
		l := sides[i]
		perSecond := func(s *stage, at target) float64 {
			perOp, _ := b.apart(s, l, at, goroutines, span)
			return float64(time.Second) / perOp
		}
		one := 0.0
		b.turn(of, l.name, func(s *stage) { one = perSecond(s, b.at) })
		b.turn(of, l.name, func(s *stage) {
			all := perSecond(s, three)
			before := published(s)
			handoffs, _ := b.handOn(s, l, three, contenders, span)
			sent := published(s) - before
			if len(handoffs) == 0 {
				s.Fatalf("no hand-off in %v", span)
			}
			b.results.add(of, l.name, "locks/s", "1/s", all)
			b.results.add(of, l.name, "x-single", "1", all/one)
			// Those of the warm-up are among the messages, and not among the hand-offs.
			b.results.add(of, l.name, "msgs/handoff", "1", float64(sent)/(1.25*float64(len(handoffs))))
		})
	})
}
