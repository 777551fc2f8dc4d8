package main

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"github.com/cilium/cilium/pkg/identity"
	"github.com/cilium/cilium/pkg/ipcache"
	kvstorestore "github.com/cilium/cilium/pkg/kvstore/store"
	"github.com/cilium/cilium/pkg/source"
)

// What a watcher of a remote cluster's addresses puts into its ipcache.
type entry struct {
	Address string
	HostIP  string
	Number  uint32
	Pod     string
}

type addresses struct{ seen []entry }

func (a *addresses) Upsert(ip string, hostIP net.IP, _ uint8, meta *ipcache.K8sMetadata, id ipcache.Identity) (bool, error) {
	a.seen = append(a.seen, entry{ip, string(hostIP), uint32(id.ID), meta.Namespace + "/" + meta.PodName})
	return false, nil
}

func (a *addresses) Delete(string, source.Source) bool { return false }

// The store of a watcher, which hands it one record instead of an etcd's.
type oneRecord struct {
	kvstorestore.Factory
	kvstorestore.WatchStore
	create   kvstorestore.KeyCreator
	observer kvstorestore.Observer
	line     line
	refused  error
}

func (o *oneRecord) NewWatchStore(_ string, create kvstorestore.KeyCreator, observer kvstorestore.Observer, _ ...kvstorestore.RWSOpt) kvstorestore.WatchStore {
	o.create, o.observer = create, observer
	return o
}

func (o *oneRecord) Watch(context.Context, kvstorestore.WatchStoreBackend, string) {
	key := o.create()
	if o.refused = key.Unmarshal(o.line.Key, []byte(o.line.Value)); o.refused == nil {
		o.observer.OnUpdate(key)
	}
}

func readAddress(l line) (any, error) {
	cache, store := &addresses{}, &oneRecord{line: l}
	watcher := ipcache.NewIPIdentityWatcher(slog.New(slog.DiscardHandler), l.Cluster, cache, store, source.ClusterMesh)
	watcher.Watch(context.Background(), nil, ipcache.WithIdentityValidator(l.ID))
	var record identity.IPIdentityPair
	if store.refused != nil {
		return nil, store.refused
	}
	if len(cache.seen) == 0 {
		return nil, errors.New("the watcher has skipped it")
	}
	if err := record.Unmarshal(l.Key, []byte(l.Value)); err != nil {
		return nil, err
	}
	again, err := record.Marshal()
	return map[string]any{"entry": cache.seen[0], "record": string(again)}, err
}
