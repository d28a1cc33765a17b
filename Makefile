# One way in. Everything is done by scripts, cargo and the program itself; this file only names it.
#
#   make up      a cluster with a running demo guest, from nothing
#   make down    stop it, leave nothing of it on the machine
#   make test    all checks and tests
#   make bench   measure this machine (BENCH)
#   make soak    simulated clusters for a night (SOAK_SECONDS)
#
# CARRACK_DATA_DIR chooses where the cluster lives (/var/lib/carrack). UP_FLAGS are handed to `carrack up`, DOWN_FLAGS to
# `carrack down`, and BENCH (all) to `carrack bench`. `make CARRACK=PROGRAM …` takes a program that is there, and so installs and
# builds nothing for up, bench and soak: so do the tests that run them.

.DEFAULT_GOAL := help
.PHONY: help up down test build fmt lint unit e2e bench soak

CARRACK := target/release/carrack
export CARRACK_DATA_DIR ?= /var/lib/carrack
BENCH ?= all

# What the program needs that was not named by hand, and the program itself.
ifeq ($(origin CARRACK),file)
made = scripts/install-deps $(1) && scripts/build --release
endif

help:
	@sed -n 's/^#   //p' Makefile

up:
	@$(call made,build run)
	@scripts/demo $(CARRACK) $(UP_FLAGS)

down:
	@if [ -x $(CARRACK) ]; then $(CARRACK) down $(DOWN_FLAGS); else echo 'nothing was built, so nothing runs'; fi
	@scripts/leftovers "$$CARRACK_DATA_DIR"

build:
	@scripts/install-deps build
	@scripts/build --release

fmt:
	cargo fmt --all

lint:
	@scripts/install-deps build
	cargo fmt --all -- --check
	scripts/clippy
	cargo xtask tidy

unit:
	@scripts/install-deps test
	scripts/run-tests unit

e2e:
	@scripts/install-deps test
	scripts/run-tests e2e

test: lint
	@scripts/install-deps test
	scripts/run-tests all

bench:
	@$(call made,build run)
	@$(CARRACK) bench $(BENCH)

soak:
	@$(call made,build)
	@scripts/soak $(CARRACK) $(SOAK_SECONDS)
