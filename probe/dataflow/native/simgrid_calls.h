// SPDX-License-Identifier: Apache-2.0
//
// The functions of SimGrid's C library that the tight engine calls, as version 3.32 (Debian 12) and version 4.1 (the
// Python package index) both have them. The index's package has the library and no headers, so they are declared here.
//
// What differs, and is kept away from: version 4 renames what makes platforms in C++ (create_* became add_*) and has no
// sg_comm_wait_any; platforms are files here (DTD version 4.1, read by both), and nothing is waited for but by mailbox
// and semaphore. sg_actor_create() is an inline function of the headers around sg_actor_create_().

#ifndef PROBE_DATAFLOW_SIMGRID_CALLS_H
#define PROBE_DATAFLOW_SIMGRID_CALLS_H

typedef struct s4u_Actor *sg_actor_t;
typedef struct s4u_Comm *sg_comm_t;
typedef struct s4u_Host *sg_host_t;
typedef struct s4u_Mailbox *sg_mailbox_t;
typedef struct s4u_Semaphore *sg_sem_t;

void simgrid_init(int *argc, char **argv);
void simgrid_load_platform(const char *filename);
void simgrid_run(void);
double simgrid_get_clock(void);

sg_host_t sg_host_by_name(const char *name);
sg_actor_t sg_actor_create_(const char *name, sg_host_t host, void (*code)(int, char **), int argc, const char *const *argv);
sg_actor_t sg_actor_self(void);
void sg_actor_daemonize(sg_actor_t actor);
void sg_actor_sleep_for(double duration);

sg_sem_t sg_sem_init(int initial_value);
void sg_sem_acquire(sg_sem_t sem);
void sg_sem_release(sg_sem_t sem);

sg_mailbox_t sg_mailbox_by_name(const char *alias);
void sg_mailbox_set_receiver(const char *alias);
sg_comm_t sg_mailbox_put_init(sg_mailbox_t mailbox, void *payload, long simulated_size_in_bytes);
void *sg_mailbox_get(sg_mailbox_t mailbox);
void sg_comm_detach(sg_comm_t comm, void (*clean_function)(void *));

#endif
