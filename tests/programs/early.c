/* A libfabric that lies: it stands before the real one, and reports operations as done whose data
 * is not, or not rightly, at its target.
 *
 * FAULT names the fault; WHEN says which operations suffer from it: the first of each run
 * ("single"), which is all that there is of a single one, or all others ("bulk"). FAULT=memlock
 * lies about nothing, and refuses to register more memory than the process may lock; FAULT=small
 * moves 1 MiB at most, FAULT=silent lets no data come along with operations, and with FAULT=context
 * the completion of a peer's write has the context of an operation that is over, as that of efa has
 * where it makes writes of messages.
 *
 * FAULT=efa is the real library's first tcp offer under efa's names, on both of its fabrics:
 * efa-direct, which comes first, has short messages only. It promises to take no shared memory;
 * with FAULT=efa-shared it does not know that wish. With FAULT=event an error that belongs to no
 * operation comes after some operations, and ends the process where no event queue is bound.
 *
 * FAULT=verbs is that offer as verbs with ofi_rxm above it, which has a device twice: by its name,
 * and for connections of another kind with "-xrc" behind it.
 *
 * With FAULT=halt the process whose number is in the file HALT stops where it would tell another
 * that it has come to a barrier, and with FAULT=halt-last where it would confirm what has arrived
 * after it has said that its own flow is over.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

/* What is delivered at once of data that comes too late. */
#define EARLY ((size_t)8)

/* More than operations are under way. */
#define COPIES 1024

/* The kinds of g2g's words (`src/transport/rdma/signal.rs`). */
#define KIND_SHIFT 29
#define KIND_DATA 0
#define KIND_CONFIRM 1
#define KIND_FINAL 2
#define KIND_TELL 3

/* Of fi_efa.7: the MTU, less the headers. */
#define DIRECT_MESSAGE_MAX ((size_t)8928)
#define OPT_SHARED_MEMORY_PERMITTED 11
#define OPT_MAX_MSG_SIZE 12

/* Operations before an error of FAULT=event. */
#define CALM 20

enum fault { NONE, FLIP, STALE, EARLY_REPORT };

/* Tables begin with what the library's inline functions look for. */
struct fabric_ops {
	struct fi_ops_fabric ops;
	struct fi_ops_fabric *real;
};

struct domain_ops {
	struct fi_ops_domain ops;
	struct fi_ops_domain *real;
	struct fi_ops_mr mr, *real_mr;
	/* Not of a provider below another one. */
	int is_outer;
};

struct queue_ops {
	struct fi_ops_cq ops;
	struct fi_ops_cq *real;
	/* Of the operation that was over last. */
	void *context;
};

struct endpoint {
	struct fi_ops ops;
	struct fi_ops *real;
	struct fi_ops_ep options;
	struct fi_ops_rma rma, *real_rma;
	struct fi_ops_msg msg, *real_msg;
	uint64_t in_run, in_all;
	int is_direct;
	struct fid_eq *events;
	/* Data that is not under way yet though it was reported. */
	int is_late;
	struct iovec late_near;
	struct fi_rma_iov late_far;
	/* Data of other operations, while it is under way. */
	struct copy {
		struct fi_context2 context;
		void *data;
		size_t length;
	} copies[COPIES];
	unsigned next;
};

static enum fault fault(void)
{
	const char *name = getenv("FAULT");
	if (!strcmp(name, "flip"))
		return FLIP;
	if (!strcmp(name, "stale"))
		return STALE;
	if (!strcmp(name, "early"))
		return EARLY_REPORT;
	return NONE;
}

static enum fault fault_of_next(const struct endpoint *endpoint)
{
	int is_single = !strcmp(getenv("WHEN"), "single");
	return is_single == (endpoint->in_run == 0) ? fault() : NONE;
}

static void *copy_of(struct copy *copy, const struct iovec *data)
{
	copy->data = realloc(copy->data, data->iov_len);
	copy->length = data->iov_len;
	return memcpy(copy->data, data->iov_base, data->iov_len);
}

/* What goes out instead of `data`: a byte of it is wrong, or it is that of the operation before. */
static struct iovec wrong(struct endpoint *endpoint, enum fault fault, const struct iovec *data)
{
	struct copy *copy = &endpoint->copies[endpoint->next % COPIES];
	struct copy *before = &endpoint->copies[(endpoint->next + COPIES - 1) % COPIES];
	struct iovec sent = *data;
	uint8_t *bytes = copy_of(copy, data);

	if (fault == FLIP) {
		bytes[data->iov_len / 2] ^= 1;
		sent.iov_base = bytes;
	} else if (fault == STALE && before->length == data->iov_len) {
		sent.iov_base = before->data;
	}
	return sent;
}

/* What the tcp provider is shown as, if as another one. */
static const char *guise(void)
{
	if (!strncmp(getenv("FAULT"), "efa", 3))
		return "efa";
	return strcmp(getenv("FAULT"), "verbs") ? NULL : "verbs;ofi_rxm";
}

/* Whether this is one of the offers that are shown as another provider's. */
static int is_shown(const struct fi_fabric_attr *fabric)
{
	return guise() && fabric->prov_name && !strcmp(fabric->prov_name, guise());
}

/* What the tcp provider calls its network, itself and its interface. */
static char network[256], layers[256], interface[256];

/* The names that an offer is shown by. */
struct names {
	struct fi_fabric_attr fabric;
	char *domain;
};

/* Gives a shown offer its own names back for a call; those that it is shown by. */
static struct names unmask(struct fi_info *info)
{
	struct names shown = {*info->fabric_attr, info->domain_attr->name};

	if (is_shown(info->fabric_attr)) {
		info->fabric_attr->name = network;
		info->fabric_attr->prov_name = layers;
		info->domain_attr->name = interface;
	}
	return shown;
}

static void mask(struct fi_info *info, struct names shown)
{
	*info->fabric_attr = shown.fabric;
	info->domain_attr->name = shown.domain;
}

static int has_failed;

static ssize_t read_events(struct fid_eq *eq, uint32_t *event, void *buffer, size_t length,
			   uint64_t flags)
{
	(void)eq, (void)event, (void)buffer, (void)length, (void)flags;
	return has_failed ? -FI_EAVAIL : -FI_EAGAIN;
}

static ssize_t read_event_error(struct fid_eq *eq, struct fi_eq_err_entry *entry, uint64_t flags)
{
	(void)eq, (void)flags;
	entry->err = FI_EHOSTUNREACH;
	return sizeof(*entry);
}

/* The operation was taken. */
static void taken(struct endpoint *endpoint)
{
	if (!strcmp(getenv("FAULT"), "event") && ++endpoint->in_all == CALM) {
		if (!endpoint->events)
			abort();
		has_failed = 1;
	}
	endpoint->in_run++;
	endpoint->next++;
}

/* Moves the data of the operation before, which is long reported. */
static ssize_t move_late(struct fid_ep *ep, struct endpoint *endpoint, const struct fi_msg_rma *like,
			 ssize_t (*move)(struct fid_ep *, const struct fi_msg_rma *, uint64_t))
{
	struct fi_msg_rma late = *like;
	ssize_t code;

	if (!endpoint->is_late)
		return 0;
	late.msg_iov = &endpoint->late_near;
	late.rma_iov = &endpoint->late_far;
	late.context = &endpoint->copies[endpoint->next % COPIES].context;
	code = move(ep, &late, 0);
	endpoint->is_late = code != 0;
	return code;
}

/* Does the beginning of an operation, and leaves the rest for later. */
static ssize_t move_early(struct fid_ep *ep, struct endpoint *endpoint, const struct fi_msg_rma *msg,
			  uint64_t flags,
			  ssize_t (*move)(struct fid_ep *, const struct fi_msg_rma *, uint64_t))
{
	struct fi_msg_rma begin = *msg;
	struct iovec near = *msg->msg_iov;
	struct fi_rma_iov far = *msg->rma_iov;
	ssize_t code = move_late(ep, endpoint, msg, move);

	if (code)
		return code;
	near.iov_len = far.len = EARLY;
	begin.msg_iov = &near;
	begin.rma_iov = &far;
	code = move(ep, &begin, flags);
	if (!code) {
		endpoint->is_late = 1;
		endpoint->late_near = *msg->msg_iov;
		endpoint->late_far = *msg->rma_iov;
	}
	return code;
}

static struct endpoint *of_rma(struct fid_ep *ep)
{
	return (struct endpoint *)((char *)ep->rma - offsetof(struct endpoint, rma));
}

static struct endpoint *of_msg(struct fid_ep *ep)
{
	return (struct endpoint *)((char *)ep->msg - offsetof(struct endpoint, msg));
}

/* Whether the last word of a flow was said, and nothing but confirmations since. */
static int said_final;

/* Stops this process if the file HALT has its number. */
static void halt_if_asked(void)
{
	FILE *file = fopen(getenv("HALT"), "r");
	int number = 0;

	if (!file)
		return;
	if (fscanf(file, "%d", &number) == 1 && number == getpid())
		raise(SIGSTOP);
	fclose(file);
}

static ssize_t writemsg(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags)
{
	struct endpoint *endpoint = of_rma(ep);
	ssize_t (*move)(struct fid_ep *, const struct fi_msg_rma *, uint64_t) =
		endpoint->real_rma->writemsg;
	enum fault fault = fault_of_next(endpoint);
	struct fi_msg_rma sent = *msg;
	struct iovec data;
	uint64_t kind = msg->data >> KIND_SHIFT;
	ssize_t code;

	if (kind != KIND_DATA) {
		if (kind == KIND_TELL && !strcmp(getenv("FAULT"), "halt"))
			halt_if_asked();
		if (kind == KIND_CONFIRM && said_final && !strcmp(getenv("FAULT"), "halt-last"))
			halt_if_asked();
		said_final = kind == KIND_FINAL || (said_final && kind == KIND_CONFIRM);
		if (kind == KIND_FINAL) {
			/* What is late by now never comes. */
			endpoint->in_run = 0;
			endpoint->is_late = 0;
		}
		return move(ep, msg, flags);
	}
	if (fault == EARLY_REPORT) {
		code = move_early(ep, endpoint, msg, flags, move);
	} else {
		data = wrong(endpoint, fault, msg->msg_iov);
		sent.msg_iov = &data;
		code = move(ep, &sent, flags);
	}
	if (!code)
		taken(endpoint);
	return code;
}

static ssize_t readmsg(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags)
{
	struct endpoint *endpoint = of_rma(ep);
	ssize_t (*move)(struct fid_ep *, const struct fi_msg_rma *, uint64_t) =
		endpoint->real_rma->readmsg;
	enum fault fault = fault_of_next(endpoint);
	struct fi_msg_rma last = *msg, all = *msg;
	struct iovec near = *msg->msg_iov;
	struct fi_rma_iov far = *msg->rma_iov;
	ssize_t code;

	if (fault == EARLY_REPORT) {
		code = move_early(ep, endpoint, msg, flags, move);
	} else if (fault == FLIP) {
		/* The first word is read a second time, from a place where another one is. */
		all.context = &endpoint->copies[endpoint->next % COPIES].context;
		code = move(ep, &all, 0);
		near.iov_len = far.len = sizeof(uint64_t);
		far.addr += sizeof(uint64_t);
		last.msg_iov = &near;
		last.rma_iov = &far;
		if (!code)
			code = move(ep, &last, flags);
	} else {
		code = move(ep, msg, flags);
	}
	if (!code)
		taken(endpoint);
	return code;
}

static ssize_t sendmsg_(struct fid_ep *ep, const struct fi_msg *msg, uint64_t flags)
{
	struct endpoint *endpoint = of_msg(ep);
	enum fault fault = fault_of_next(endpoint);
	struct fi_msg sent = *msg;
	struct iovec data;
	ssize_t code;

	if (endpoint->is_direct && msg->msg_iov->iov_len > DIRECT_MESSAGE_MAX)
		return -FI_EMSGSIZE;
	data = wrong(endpoint, fault, msg->msg_iov);
	/* A message has no rest that could come later. */
	if (fault == EARLY_REPORT)
		data.iov_len = EARLY;
	sent.msg_iov = &data;
	code = endpoint->real_msg->sendmsg(ep, &sent, flags);
	if (!code)
		taken(endpoint);
	return code;
}

static ssize_t injectdata(struct fid_ep *ep, const void *data, size_t length, uint64_t word,
			  fi_addr_t peer)
{
	struct endpoint *endpoint = of_msg(ep);
	struct iovec near = {(void *)data, length};
	struct iovec sent = wrong(endpoint, fault_of_next(endpoint), &near);
	ssize_t code = endpoint->real_msg->injectdata(ep, sent.iov_base, length, word, peer);

	if (!code)
		taken(endpoint);
	return code;
}

static int control(struct fid *fid, int command, void *argument)
{
	struct fid_ep *ep = (struct fid_ep *)fid;
	struct endpoint *endpoint = (struct endpoint *)fid->ops;
	int code = endpoint->real->control(fid, command, argument);

	if (command == FI_ENABLE && !code) {
		endpoint->real_rma = ep->rma;
		endpoint->rma = *ep->rma;
		endpoint->rma.writemsg = writemsg;
		endpoint->rma.readmsg = readmsg;
		ep->rma = &endpoint->rma;
		endpoint->real_msg = ep->msg;
		endpoint->msg = *ep->msg;
		endpoint->msg.sendmsg = sendmsg_;
		endpoint->msg.injectdata = injectdata;
		ep->msg = &endpoint->msg;
	}
	return code;
}

static int bind_endpoint(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct endpoint *endpoint = (struct endpoint *)fid->ops;
	static struct fi_ops_eq ops;

	if (other->fclass == FI_CLASS_EQ && !strcmp(getenv("FAULT"), "event")) {
		endpoint->events = (struct fid_eq *)other;
		ops = *endpoint->events->ops;
		ops.read = read_events;
		ops.readerr = read_event_error;
		endpoint->events->ops = &ops;
		return 0;
	}
	return endpoint->real->bind(fid, other, flags);
}

static int setopt(fid_t fid, int level, int name, const void *value, size_t length)
{
	(void)fid, (void)level, (void)value, (void)length;
	return name == OPT_SHARED_MEMORY_PERMITTED && !strcmp(getenv("FAULT"), "efa") ?
		       0 : -FI_ENOPROTOOPT;
}

static int getopt_(fid_t fid, int level, int name, void *value, size_t *length)
{
	struct endpoint *endpoint = (struct endpoint *)fid->ops;

	(void)level;
	if (name != OPT_MAX_MSG_SIZE || *length != sizeof(size_t) || !endpoint->is_direct)
		return -FI_ENOPROTOOPT;
	*(size_t *)value = DIRECT_MESSAGE_MAX;
	return 0;
}

static int open_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep,
			 void *context)
{
	struct domain_ops *table = (struct domain_ops *)domain->ops;
	struct endpoint *endpoint;
	int is_direct = !strcmp(info->fabric_attr->name, "efa-direct"), code;
	struct names shown = unmask(info);

	code = table->real->endpoint(domain, info, ep, context);
	mask(info, shown);
	/* A layered provider may open those of the provider below through this library too. */
	if (code || info->ep_attr->type != FI_EP_RDM)
		return code;
	endpoint = calloc(1, sizeof(*endpoint));
	endpoint->real = (*ep)->fid.ops;
	endpoint->ops = *endpoint->real;
	endpoint->ops.control = control;
	endpoint->ops.bind = bind_endpoint;
	endpoint->is_direct = is_direct;
	(*ep)->fid.ops = &endpoint->ops;
	if (!strcmp(shown.fabric.prov_name, "efa")) {
		endpoint->options = *(*ep)->ops;
		endpoint->options.setopt = setopt;
		endpoint->options.getopt = getopt_;
		(*ep)->ops = &endpoint->options;
	}
	return 0;
}

/* Locks memory as hardware does: not more than the process may. */
static int regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags,
		   struct fid_mr **mr)
{
	struct fid_domain *domain = (struct fid_domain *)fid;
	struct domain_ops *table = (struct domain_ops *)domain->ops;
	struct rlimit limit;

	if (!strcmp(getenv("FAULT"), "memlock") && !getrlimit(RLIMIT_MEMLOCK, &limit) &&
	    attr->mr_iov->iov_len > limit.rlim_cur)
		return -FI_ENOMEM;
	return table->real_mr->regattr(fid, attr, flags, mr);
}

static ssize_t read_queue(struct fid_cq *cq, void *buffer, size_t count)
{
	struct queue_ops *queue = (struct queue_ops *)cq->ops;
	struct fi_cq_data_entry *entry = buffer;
	ssize_t found = queue->real->read(cq, buffer, count), at;

	for (at = 0; at < found; at++, entry++) {
		if (entry->flags & FI_REMOTE_WRITE)
			entry->op_context = queue->context;
		else
			queue->context = entry->op_context;
	}
	return found;
}

static int open_queue(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq,
		      void *context)
{
	struct domain_ops *table = (struct domain_ops *)domain->ops;
	struct queue_ops *queue;
	int code = table->real->cq_open(domain, attr, cq, context);

	if (code || !table->is_outer || strcmp(getenv("FAULT"), "context"))
		return code;
	queue = calloc(1, sizeof(*queue));
	queue->real = (*cq)->ops;
	queue->ops = *queue->real;
	queue->ops.read = read_queue;
	(*cq)->ops = &queue->ops;
	return 0;
}

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain,
		       void *context)
{
	struct fabric_ops *above = (struct fabric_ops *)fabric->ops;
	struct domain_ops *table;
	struct names shown = unmask(info);
	int code = above->real->domain(fabric, info, domain, context);

	mask(info, shown);
	if (code)
		return code;
	table = calloc(1, sizeof(*table));
	table->real = (*domain)->ops;
	table->ops = *table->real;
	table->ops.endpoint = open_endpoint;
	table->ops.cq_open = open_queue;
	table->is_outer = info->ep_attr->type == FI_EP_RDM;
	table->real_mr = (*domain)->mr;
	table->mr = *table->real_mr;
	table->mr.regattr = regattr;
	(*domain)->mr = &table->mr;
	(*domain)->ops = &table->ops;
	return 0;
}

typedef int getinfo(uint32_t, const char *, const char *, uint64_t, const struct fi_info *,
		    struct fi_info **);

static void rename_(char **name, const char *now)
{
	free(*name);
	*name = strdup(now);
}

static int close_device(struct fid *fid)
{
	struct fid_nic *nic = (struct fid_nic *)fid;

	free(nic->device_attr->name);
	free(nic->device_attr);
	free(nic);
	return 0;
}

static int control_device(struct fid *fid, int command, void *argument);

static struct fi_ops device_ops = {
	.size = sizeof(struct fi_ops),
	.close = close_device,
	.control = control_device,
};

/* The device of an offer. */
static struct fid_nic *device(const char *name)
{
	struct fid_nic *nic = calloc(1, sizeof(*nic));

	nic->fid.fclass = FI_CLASS_NIC;
	nic->fid.ops = &device_ops;
	nic->device_attr = calloc(1, sizeof(*nic->device_attr));
	nic->device_attr->name = strdup(name);
	return nic;
}

static int control_device(struct fid *fid, int command, void *argument)
{
	if (command != FI_DUP)
		return -FI_ENOSYS;
	*(struct fid_nic **)argument = device(((struct fid_nic *)fid)->device_attr->name);
	return 0;
}

/* The first offer of tcp as two of another provider. */
static int get_shown(getinfo *get, uint32_t version, const struct fi_info *wanted,
		     struct fi_info **info)
{
	struct fi_info *hints = fi_dupinfo(wanted), *second, *first;
	int code;

	free(hints->fabric_attr->name);
	free(hints->domain_attr->name);
	hints->fabric_attr->name = hints->domain_attr->name = NULL;
	rename_(&hints->fabric_attr->prov_name, "tcp");
	code = get(version, NULL, NULL, 0, hints, info);
	fi_freeinfo(hints);
	if (code)
		return code;
	second = *info;
	fi_freeinfo(second->next);
	second->next = NULL;
	strncpy(network, second->fabric_attr->name, sizeof(network) - 1);
	strncpy(layers, second->fabric_attr->prov_name, sizeof(layers) - 1);
	strncpy(interface, second->domain_attr->name, sizeof(interface) - 1);
	rename_(&second->fabric_attr->prov_name, guise());
	first = fi_dupinfo(second);
	first->next = second;
	if (!strcmp(guise(), "efa")) {
		rename_(&first->fabric_attr->name, "efa-direct");
		rename_(&second->fabric_attr->name, "efa");
	} else {
		rename_(&first->fabric_attr->name, "IB-0xfe80000000000000");
		rename_(&second->fabric_attr->name, "IB-0xfe80000000000000");
		rename_(&first->domain_attr->name, "mlx5_0-xrc");
		rename_(&second->domain_attr->name, "mlx5_0");
		if (!first->nic)
			first->nic = device("mlx5_0");
		if (!second->nic)
			second->nic = device("mlx5_0");
	}
	*info = first;
	return 0;
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	       const struct fi_info *hints, struct fi_info **info)
{
	getinfo *get;
	void *library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_NOLOAD);
	struct fi_info *offer;
	int code;

	*(void **)&get = dlvsym(library, "fi_getinfo", "FABRIC_1.3");
	/* A layered provider asks for the one below. */
	if (guise() && (!hints->fabric_attr->prov_name || is_shown(hints->fabric_attr)))
		return get_shown(get, version, hints, info);
	code = get(version, node, service, flags, hints, info);
	for (offer = code ? NULL : *info; offer; offer = offer->next) {
		if (!strcmp(getenv("FAULT"), "small"))
			offer->ep_attr->max_msg_size = 1 << 20;
		if (!strcmp(getenv("FAULT"), "silent"))
			offer->domain_attr->cq_data_size = 0;
	}
	return code;
}

/* All other functions are found in the real library, which this one is linked to. */
int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	int (*open)(struct fi_fabric_attr *, struct fid_fabric **, void *);
	void *library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_NOLOAD);
	struct fi_fabric_attr named = *attr;
	struct fabric_ops *table;
	int code;

	if (is_shown(attr)) {
		named.name = network;
		named.prov_name = layers;
	}
	*(void **)&open = dlvsym(library, "fi_fabric", "FABRIC_1.1");
	code = open(&named, fabric, context);
	if (code)
		return code;
	table = calloc(1, sizeof(*table));
	table->real = (*fabric)->ops;
	table->ops = *table->real;
	table->ops.domain = open_domain;
	(*fabric)->ops = &table->ops;
	return 0;
}
